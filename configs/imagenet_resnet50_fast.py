"""ResNet-50 on ImageNet in few epochs: small images first, one rise and one fall of the rate.

Source: Leclerc et al. (2023), ffcv-imagenet: 8 devices with 512 images each, 160x160 pixels, and 192x192 for the last
quarter. The source also blurs before strides and adds up the answers for an image and its mirror image; that is not
done here, and costs some tenths of a percent.
Command: python train.py --config configs/imagenet_resnet50_fast.py data.data_dir=DIRECTORY epochs=16
Expected: of the validation images, one centre crop of 256x256 (the source's); nothing was measured here.

    epochs=16  73.8 %      epochs=32  76.6 %      epochs=56  78.0 %      epochs=88  78.4 %
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models.resnet import resnet50


def get_config() -> Config:
    """The run."""
    return Config(
        model=resnet50(num_classes=1000, dtype="bfloat16"),
        data=ImageNet(size=192, test_size=256, test_resize=292),
        task=ImageClassification(
            pixels=Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            resolutions=((0.0, 160), (0.75, 192)),
            label_smoothing=0.1,
        ),
        epochs=16,
        batch_size=4096,
        eval_batch_size=1024,
        optimizer=Optimizer(
            "sgd",
            learning_rate=1.7,
            reference_batch=4096,
            schedule="linear",
            warmup_epochs=2,
            momentum=0.9,
            weight_decay=1e-4,
        ),
        checkpoints=Checkpoints(every_steps=1000),
    )
