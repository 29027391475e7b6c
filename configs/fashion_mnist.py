"""A CNN on Fashion-MNIST: a real benchmark with an official split, on a laptop in minutes.

Source: Xiao, Rasul and Vollgraf (2017); the images from TFDS, or from Debian's package dataset-fashion-mnist.
Command: python train.py --config configs/fashion_mnist.py
Expected: 93.7 % of the official 10,000 test images (measured with seed 0), in about 12 minutes on 2 cores.
"""

from jaxnet import Augmentation, Config, ImageClassification, Log, Optimizer, Pixels
from jaxnet.data import FashionMNIST
from jaxnet.models import CNN


def get_config() -> Config:
    """The run."""
    return Config(
        model=CNN(num_classes=10, widths=(32, 64, 128), hidden=256, norm=True, dropout=0.4, smooth=True),
        data=FashionMNIST(),
        task=ImageClassification(
            pixels=Pixels(mean=(0.286,), std=(0.353,)),
            augmentation=Augmentation(flip=True, shift=1),
            label_smoothing=0.05,
        ),
        epochs=16,
        batch_size=256,
        eval_batch_size=1000,
        optimizer=Optimizer("adamw", learning_rate=3e-3, nesterov=True, warmup_steps=200, weight_decay=0.02),
        log=Log(every_steps=50),
    )
