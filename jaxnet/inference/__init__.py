"""What was trained, in use: probabilities for images, from Python, from the command line, or exported for JAX alone.

predictor = load("runs/digits")
probabilities = predictor(images)       # uint8 [n, 8, 8, 1] to float32 [n, 10]
"""

from jaxnet.inference.loading import load as load
from jaxnet.inference.predictor import Prediction as Prediction
from jaxnet.inference.predictor import Predictor as Predictor
