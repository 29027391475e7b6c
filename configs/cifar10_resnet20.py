"""ResNet-20 on CIFAR-10, as its paper trains it; the data set as TFDS has prepared it.

Source: He et al. (2016), section 4.2: 64,000 steps on 128 images, the rate divided by 10 after a half and three
quarters of them, images moved by up to 4 pixels and mirrored. The paper subtracts the mean of each pixel; here the mean
of each channel goes, and its standard deviation.
Command: python train.py --config configs/cifar10_resnet20.py data.data_dir=DIRECTORY
Expected: 91.25 % of the test images (the paper's); nothing was measured here. Deeper ones, such as the paper's 110
layers: "model.depths=18,18,18", which begin at a rate of 0.01.
"""

from jaxnet import Augmentation, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import TFDS
from jaxnet.models.resnet import cifar_resnet


def get_config() -> Config:
    """The run."""
    return Config(
        model=cifar_resnet(20),
        data=TFDS("cifar10"),
        task=ImageClassification(
            pixels=Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
            augmentation=Augmentation(flip=True, shift=4),
        ),
        epochs=64_000 * 128 / 50_000,
        batch_size=128,
        eval_batch_size=1000,
        eval_every_epochs=10,
        optimizer=Optimizer(
            "sgd", learning_rate=0.1, schedule="step", milestones=(0.5, 0.75), factor=0.1, weight_decay=1e-4
        ),
    )
