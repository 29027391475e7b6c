"""What a run minimizes and measures: a task, as a value beside the model.

- `Task`: the contract, and what to subclass; `LossFn`, `LossOutput`: the loss of a batch, with metrics and new running
  averages.
- `ImageClassification`: classes of images, with `Pixels` (how images become what a model takes), `Augmentation` (random
  flips, shifts, erasing and colours) and `Mixing` (mixup and cutmix).
- `Classification`, `Regression`: classes or numbers, of any arrays.
- `LanguageModel`, `SequenceClassification`: of tokens.
- `make_eval_step`, `evaluate`: exact evaluation, in which every example counts once.
"""

from jaxnet.tasks.augmentation import Augmentation
from jaxnet.tasks.classification import Classification, ImageClassification, Pixels, classification_loss
from jaxnet.tasks.evaluation import evaluate, make_eval_step
from jaxnet.tasks.mixing import Mixing
from jaxnet.tasks.regression import Regression
from jaxnet.tasks.task import LossFn, LossOutput, Task
from jaxnet.tasks.text import LanguageModel, SequenceClassification

__all__ = [
    "Augmentation",
    "Classification",
    "ImageClassification",
    "LanguageModel",
    "LossFn",
    "LossOutput",
    "Mixing",
    "Pixels",
    "Regression",
    "SequenceClassification",
    "Task",
    "classification_loss",
    "evaluate",
    "make_eval_step",
]
