"""Four small CNNs on scikit-learn's digits at once, and what they say together.

Source: the data of configs/digits.py; networks with 1/27 of its weights, which leave something to gain.
Command: python train.py --config configs/digits_ensemble.py
    python train.py --config configs/digits_ensemble.py ensemble.learning_rates=1e-3,3e-3,5e-3,1e-2    # a sweep
Expected, measured with seeds 0 and 10: members 94.2 to 97.2 % of the 360 test images, 96.0 and 96.5 % in the mean, and
their mean prediction 97.5 % both times. 20 to 26 seconds of training on 2 cores that were busy with other work.
"""

from jaxnet import Augmentation, Checkpoints, Config, Ensemble, ImageClassification, Log, Optimizer, Pixels
from jaxnet.data import Digits
from jaxnet.models import CNN


def get_config() -> Config:
    """The run."""
    return Config(
        model=CNN(num_classes=10, widths=(8, 16), hidden=32, norm=True, dropout=0.1, smooth=True),
        data=Digits(),
        task=ImageClassification(
            pixels=Pixels(mean=(0.305,), std=(0.376,)), augmentation=Augmentation(shift=1), label_smoothing=0.05
        ),
        epochs=15,
        batch_size=64,
        eval_batch_size=64,
        eval_every_epochs=5,
        optimizer=Optimizer("adamw", learning_rate=5e-3, nesterov=True, warmup_steps=50, weight_decay=0.01),
        ensemble=Ensemble(members=4),
        checkpoints=Checkpoints(every_steps=200),
        log=Log(every_steps=50),
    )
