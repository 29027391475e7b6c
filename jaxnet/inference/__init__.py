"""Use a trained network: from Python, from the command line, or exported for JAX alone.

    predictor = load("runs/digits")
    probabilities = predictor(images)       # uint8 [n, 8, 8, 1] to float32 [n, 10]

- `load`: a `Predictor` from a workdir, a checkpoint, a file of weights or an exported program.
- `Predictor`: called with images; `files` gives a `Prediction` for each picture file.

Modules: `loading` finds the weights, `settings` makes a run's model again, `network` is the model with its weights,
`predictor` calls it, `answers` prints predictions, `export` writes and reads StableHLO programs, `bench` times them.
"""

from jaxnet.inference.loading import load
from jaxnet.inference.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor", "load"]
