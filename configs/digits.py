"""A small CNN on scikit-learn's digits: the default run, on a laptop in seconds.

Source: scikit-learn's `load_digits` (1797 images of 8x8, UCI Optical Recognition of Handwritten Digits), embedded.
Command: python train.py --config configs/digits.py
Expected: 99.4 % of the 360 test images (measured with seeds 0, 1 and 2), in 4 to 7 seconds of training on 2 cores.
"""

from jaxnet import Augmentation, Checkpoints, Config, ImageClassification, Log, Optimizer, Pixels
from jaxnet.data import Digits
from jaxnet.models import CNN


def get_config() -> Config:
    """The run."""
    return Config(
        model=CNN(num_classes=10, widths=(32, 64), convs=2, hidden=128, norm=True, dropout=0.3, smooth=True),
        data=Digits(),
        task=ImageClassification(
            pixels=Pixels(mean=(0.305,), std=(0.376,)), augmentation=Augmentation(shift=1), label_smoothing=0.05
        ),
        epochs=30,
        batch_size=64,
        eval_batch_size=64,
        eval_every_epochs=5,
        optimizer=Optimizer("adamw", learning_rate=2e-3, nesterov=True, warmup_steps=50, weight_decay=0.01),
        checkpoints=Checkpoints(every_steps=200),
        log=Log(every_steps=50),
    )
