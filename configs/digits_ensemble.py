"""Four small CNNs on scikit-learn's digits at once, and what they say together.

Source: the data and the recipe of configs/digits.py, with a quarter of the weights; members differ by their seed.
Command: python train.py --config configs/digits_ensemble.py
Expected: (to be measured)
"""

from jaxnet.data import Digits
from jaxnet.models import CNN
from jaxnet.training.augment import Augmentation
from jaxnet.training.config import Checkpoints, Config, Log
from jaxnet.training.ensemble import Ensemble
from jaxnet.training.loss import Pixels
from jaxnet.training.optimizer import Optimizer


def get_config() -> Config:
    """The run."""
    return Config(
        model=CNN(num_classes=10, widths=(16, 32), hidden=64, norm=True, dropout=0.3, smooth=True),
        data=Digits(),
        pixels=Pixels(mean=(0.305,), std=(0.376,)),
        epochs=15,
        batch_size=64,
        eval_batch_size=64,
        eval_every_epochs=5,
        optimizer=Optimizer("adamw", learning_rate=4e-3, warmup_steps=50, weight_decay=0.01),
        augmentation=Augmentation(shift=1),
        label_smoothing=0.05,
        ensemble=Ensemble(members=4),
        checkpoints=Checkpoints(every_steps=200),
        log=Log(every_steps=50),
    )
