"""VGG-16 on ImageNet: 138 million parameters, so that gradients are most of what travels.

Source: Simonyan and Zisserman (2015): batches of 256, a rate of 0.01 divided by 10 three times, 74 epochs; the paper
divides when accuracy stands still, here it is after each quarter. It starts some layers from a shallower network; here
all start as in He et al. (2015).
Command: python train.py --config configs/imagenet_vgg16.py data.data_dir=DIRECTORY
Expected: 71.6 % of the validation images, one centre crop (torchvision's, with 90 epochs and a weight decay of 1e-4);
nothing was measured here.
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models import VGG


def get_config() -> Config:
    """The run."""
    return Config(
        model=VGG(num_classes=1000, depth=16, dtype="bfloat16"),
        data=ImageNet(size=224),
        task=ImageClassification(pixels=Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))),
        epochs=74,
        batch_size=256,
        eval_batch_size=1000,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.01,
            reference_batch=256,
            schedule="step",
            milestones=(0.25, 0.5, 0.75),
            factor=0.1,
            momentum=0.9,
            weight_decay=5e-4,
        ),
        checkpoints=Checkpoints(every_steps=5000),
    )
