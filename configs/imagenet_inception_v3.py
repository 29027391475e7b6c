"""Inception v3 on ImageNet: images of 299x299, an auxiliary head, RMSProp.

Source: Szegedy et al. (2016): 50 replicas with 32 images each, 100 epochs, RMSProp with decay 0.9 and epsilon 1, a rate
of 0.045 multiplied by 0.94 every two epochs, gradients clipped at 2, label smoothing 0.1. Momentum, weight decay and
the average of the parameters are those of TensorFlow's published program. BatchNorm normalizes by a device's images;
the source's are 32.
Command: python train.py --config configs/imagenet_inception_v3.py data.data_dir=DIRECTORY
Expected: 78.8 % of the validation images, one crop (the source's); nothing was measured here.
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models import InceptionV3


def get_config() -> Config:
    """The run."""
    return Config(
        model=InceptionV3(num_classes=1000, dtype="bfloat16"),
        data=ImageNet(size=299),
        task=ImageClassification(pixels=Pixels(mean=(0.5,), std=(0.5,)), label_smoothing=0.1),
        epochs=100,
        batch_size=1600,
        eval_batch_size=1000,
        optimizer=Optimizer(
            "rmsprop",
            learning_rate=0.045,
            reference_batch=1600,
            schedule="step",
            milestones=tuple(step / 50 for step in range(1, 50)),
            factor=0.94,
            momentum=0.9,
            weight_decay=4e-5,
            clip_norm=2.0,
        ),
        average_decay=0.9999,
        checkpoints=Checkpoints(every_steps=2000),
    )
