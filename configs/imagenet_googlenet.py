"""GoogLeNet without BatchNorm on ImageNet, with its auxiliary heads, as Caffe trains it.

Source: Szegedy et al. (2015) and Caffe's bvlc_googlenet (the quick solver): batches of 32, 60 epochs, the rate falling
as (1 - t)^0.5. Pixels keep their scale of 0 to 255 less the mean. The rate grows with the batch, so that
`batch_size=256` needs no other change; the source's is 32.
Command: python train.py --config configs/imagenet_googlenet.py data.data_dir=DIRECTORY
Expected: 68.7 % of the validation images, one centre crop (Caffe's, with its own crops); nothing was measured here.
"""

from jaxnet import Checkpoints, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import ImageNet
from jaxnet.models import GoogLeNet


def get_config() -> Config:
    """The run."""
    return Config(
        model=GoogLeNet(num_classes=1000),
        data=ImageNet(size=224),
        task=ImageClassification(pixels=Pixels(mean=(123 / 255, 117 / 255, 104 / 255), std=(1 / 255,))),
        epochs=60,
        batch_size=32,
        eval_batch_size=1000,
        eval_every_epochs=2,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.01,
            reference_batch=32,
            schedule="polynomial",
            power=0.5,
            momentum=0.9,
            weight_decay=2e-4,
        ),
        checkpoints=Checkpoints(every_steps=20_000),
    )
