"""ResNet-18 of half the channels on Fashion-MNIST, of images that grow from 20x20 to 28x28.

Its stem is one 3x3 convolution, as for CIFAR-10. A step on 128 images of 28x28 is 88 GFLOP and half of that at 20x20,
where the first 60 % of the steps are: a third less work than 16 whole epochs, which makes room for the width. Tests are
at 28x28 all along, so that the accuracy means little before the images have grown.
Source: He et al. (2016); one rise and one fall of the rate, and small images first, as in Leclerc et al. (2023).
Command: python train.py --config configs/fashion_mnist_resnet18.py
Expected: 94.41 % of the 10,000 test images (seed 0, one run). 7,500 steps, 47 minutes on 2 cores.
"""

from jaxnet import Augmentation, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import FashionMNIST
from jaxnet.models.resnet import resnet18


def get_config() -> Config:
    """The run."""
    return Config(
        model=resnet18(num_classes=10, stem="small", width=0.5),
        data=FashionMNIST(),
        task=ImageClassification(
            pixels=Pixels(mean=(0.286,), std=(0.353,)),
            augmentation=Augmentation(flip=True, shift=1, erase=5),
            resolutions=((0.0, 20), (0.6, 28)),
            label_smoothing=0.05,
        ),
        epochs=16,
        batch_size=128,
        eval_batch_size=1000,
        eval_every_epochs=2,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.1,
            nesterov=True,
            schedule="linear",
            warmup_epochs=2,
            weight_decay=5e-4,
        ),
    )
