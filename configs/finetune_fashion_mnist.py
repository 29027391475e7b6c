"""ResNet-18 with ImageNet's weights, fine-tuned on Fashion-MNIST: the new head at ten times the rate of the rest.

The weights are torchvision's (resnet18-f37072fd.pth, IMAGENET1K_V1), without their head of 1000 classes; the first
convolution is summed over its colours, as the images are grey.
Command:
    jaxnet import --from torchvision resnet18-f37072fd.pth --model resnet18 --new-head --out resnet18.safetensors
    python train.py --config configs/finetune_fashion_mnist.py
    python train.py --config configs/finetune_fashion_mnist.py 'optimizer.groups=fc:1,*:0'    # the head alone
Expected: not measured; the weights are not part of this repository.
"""

from jaxnet import Augmentation, Config, ImageClassification, Optimizer, Pixels
from jaxnet.data import FashionMNIST
from jaxnet.models.resnet import resnet18


def get_config() -> Config:
    """The run."""
    return Config(
        model=resnet18(num_classes=10),
        data=FashionMNIST(),
        task=ImageClassification(
            pixels=Pixels(mean=(0.449,), std=(0.226,)),
            augmentation=Augmentation(flip=True, shift=2),
            label_smoothing=0.1,
        ),  # ImageNet's, over its three colours
        epochs=5,
        batch_size=128,
        eval_batch_size=1000,
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.02,
            nesterov=True,
            warmup_steps=100,
            weight_decay=1e-4,
            groups=(("fc", 1.0), ("*", 0.1)),
        ),
        initial_weights="resnet18.safetensors",
    )
