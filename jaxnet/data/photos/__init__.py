"""Photos as training input: decoded, cropped and resized when an example is asked for.

- `Photos`, `ImageNet`: data sets that TFDS has prepared (`datasets`). `ImageFolder`: class folders of files (`folder`).
- `TrainingPhotos`, `EvaluationPhotos`: sources of decoded examples, with an account of damaged ones (`source`).
- `TrainingView`, `EvaluationView`: the part of a photo that a model sees (`views`, with the boxes of `crops`).
- `RandAugment`, `ColourJitter`: random changes of shape and colour, off by default (`distort`).
- `decoding`: from encoded bytes to pixels, by the fastest decoder that is installed.
"""

from jaxnet.data.photos.datasets import ImageNet, Photos
from jaxnet.data.photos.distort import ColourJitter, RandAugment
from jaxnet.data.photos.folder import ImageFolder
from jaxnet.data.photos.source import EvaluationPhotos, TrainingPhotos
from jaxnet.data.photos.views import EvaluationView, TrainingView

__all__ = [
    "ColourJitter",
    "EvaluationPhotos",
    "EvaluationView",
    "ImageFolder",
    "ImageNet",
    "Photos",
    "RandAugment",
    "TrainingPhotos",
    "TrainingView",
]
