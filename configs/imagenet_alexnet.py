"""AlexNet of 2012 on ImageNet, as Caffe trains it.

Source: Krizhevsky et al. (2012) and Caffe's bvlc_alexnet: batches of 256, 90 epochs, the rate divided by 10 every 20.
Pixels keep their scale of 0 to 255 less the mean, which the initial weights are made for. Caffe crops 227x227 out of
256x256; here training sees crops of random size and shape.
Command: python train.py --config configs/imagenet_alexnet.py data.data_dir=DIRECTORY
Expected: 57.1 % of the validation images, one centre crop (Caffe's, with its own crops); nothing was measured here.
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models import AlexNet2012


def get_config() -> Config:
    """The run."""
    return Config(
        model=AlexNet2012(num_classes=1000),
        data=ImageNet(size=227, test_resize=256),
        task=ImageClassification(pixels=Pixels(mean=(123 / 255, 117 / 255, 104 / 255), std=(1 / 255,))),
        epochs=90,
        batch_size=256,
        eval_batch_size=1000,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.01,
            reference_batch=256,
            schedule="step",
            milestones=(20 / 90, 40 / 90, 60 / 90, 80 / 90),
            factor=0.1,
            momentum=0.9,
            weight_decay=5e-4,
        ),
        checkpoints=Checkpoints(every_steps=5000),
    )
