"""ResNet-50 on ImageNet with batches of 8192: large-batch SGD by linear scaling and gradual warm-up.

Source: Goyal et al. (2017), 256 GPUs with 32 images each. BatchNorm normalizes by those 32: on 8 devices with 1024
images each, set microbatches=32.
Command: python train.py --config configs/imagenet_resnet50_batch8192.py data.data_dir=DIRECTORY
Expected: 76.3 % of the validation images, one centre crop (the source's); nothing was measured here.
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
        batch_size=8192,
        eval_batch_size=1024,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.1,
            reference_batch=256,
            schedule="step",
            milestones=(30 / 90, 60 / 90, 80 / 90),
            factor=0.1,
            warmup_epochs=5,
            warmup_from=256 / 8192,
            momentum=0.9,
            weight_decay=1e-4,
        ),
        batch_norm="local",
        checkpoints=Checkpoints(every_steps=1000),
    )
