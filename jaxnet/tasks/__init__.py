"""What a run minimizes and measures: a loss, metrics, and the augmentation of its examples.

The contract between training and any task:

- `LossFn`, `LossOutput`: the loss of a batch, with metrics and new running averages.

Image classification:

- `classification_loss`: softmax cross-entropy, with label smoothing, augmentation and mixing.
- `Pixels`: how images become what a model takes.
- `Augmentation`: random flips, shifts, erasing and colours. `Mixing`: mixup and cutmix.
- `make_eval_step`, `evaluate`: exact evaluation, in which every example counts once.
"""

from jaxnet.tasks.augmentation import Augmentation
from jaxnet.tasks.classification import LossFn, LossOutput, Pixels, classification_loss, evaluate, make_eval_step
from jaxnet.tasks.mixing import Mixing

__all__ = [
    "Augmentation",
    "LossFn",
    "LossOutput",
    "Mixing",
    "Pixels",
    "classification_loss",
    "evaluate",
    "make_eval_step",
]
