"""The networks of throughput.py, their images, and what its workers are told. Needs neither JAX nor PyTorch."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

CLASSES = 1000
IMAGE = (224, 224, 3)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the pixels, scaled to [0, 1]
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
MATMUL = "matmul"  # the variant that measures a framework's peak
WARMUP_STEPS = 2


class Network(NamedTuple):
    """A network by its names.

    Attributes:
        zoo: in `jaxnet.models.zoo.ZOO`, and in tests/support/torch_nets.py.
        auxiliary: weight of the losses of its auxiliary heads.
    """

    zoo: str
    auxiliary: float = 0.0


NETWORKS = {
    "alexnet": Network("alexnet"),
    "googlenet": Network("googlenet_bn", 0.3),  # torchvision's
    "resnet18": Network("resnet18"),
    "resnet50": Network("resnet50"),
    "vgg16": Network("vgg16"),
}


def worker_arguments(description: str | None, variants: Sequence[str]) -> argparse.Namespace:
    """The command line of a worker."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=list(NETWORKS), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--side", type=int, required=True, help="of the matrices of the variant 'matmul'")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--variant", action="append", choices=list(variants), default=[])
    return parser.parse_args()
