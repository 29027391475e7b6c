"""ResNet-50 on ImageNet in 90 epochs: the run to start with.

Source: He et al. (2016) with the practice of Goyal et al. (2017): the stride in the 3x3 convolutions, the last scale of
each block zero at first, no decay of biases and BatchNorm, a warm-up of 5 epochs, a batch of 256 at a rate of 0.1. The
rate grows with the batch, so `batch_size=1024` needs no other change. `optimizer.schedule=cosine
optimizer.milestones=` instead of the steps, and `label_smoothing=0.1`, are what later recipes do.
Command: python train.py --config configs/imagenet_resnet50.py data.data_dir=DIRECTORY
Expected: 76.3 % of the 50,000 validation images, one centre crop (the source's); nothing was measured here.
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models.resnet import resnet50


def get_config() -> Config:
    """The run."""
    return Config(
        model=resnet50(num_classes=1000, dtype="bfloat16"),
        data=ImageNet(size=224),
        task=ImageClassification(pixels=Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))),
        epochs=90,
        batch_size=256,
        eval_batch_size=1000,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.1,
            reference_batch=256,
            schedule="step",
            milestones=(30 / 90, 60 / 90, 80 / 90),
            factor=0.1,
            warmup_epochs=5,
            momentum=0.9,
            weight_decay=1e-4,
        ),
        checkpoints=Checkpoints(every_steps=5000),
    )
