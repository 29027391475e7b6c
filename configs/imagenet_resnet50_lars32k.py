"""ResNet-50 on ImageNet with batches of 32768 and LARS: under 40 steps an epoch.

Source: You et al. (2017) for LARS and the polynomial schedule; rate, warm-up and momentum as Kumar et al. (2019) used
them with momentum that is not scaled, on 1024 TPU chips for MLPerf 0.6 (weight decay 2e-4, label smoothing 0.1).
Command: python train.py --config configs/imagenet_resnet50_lars32k.py data.data_dir=DIRECTORY
Expected: 75.9 % of the validation images, one centre crop, which is MLPerf's aim (the source's); nothing was measured
here, and the source's BatchNorm took more images than one device holds: try batch_norm=host.
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models.resnet import resnet50


def get_config() -> Config:
    """The run."""
    return Config(
        model=resnet50(num_classes=1000, dtype="bfloat16"),
        data=ImageNet(size=224),
        task=ImageClassification(
            pixels=Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), label_smoothing=0.1
        ),
        epochs=72,
        batch_size=32768,
        eval_batch_size=2048,
        eval_every_epochs=4,
        optimizer=Optimizer(
            "lars",
            learning_rate=31.2,
            reference_batch=32768,
            schedule="polynomial",
            power=2.0,
            warmup_epochs=25,
            momentum=0.9,
            weight_decay=2e-4,
            trust_coefficient=0.001,
        ),
        checkpoints=Checkpoints(every_steps=500),
    )
