"""What throughput.py and layers.py time: networks, their inputs and layers. Needs neither JAX nor PyTorch."""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

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


class Text(NamedTuple):
    """The sizes of the transformer of configs/text_transformer.py, which predicts the next byte."""

    vocabulary: int = 256
    positions: int = 128
    dim: int = 128
    depth: int = 3
    heads: int = 4


TEXT = "text_transformer"
MODELS = (*NETWORKS, TEXT)  # what throughput.py times

DIRECTIONS = ("forward", "to_inputs", "to_kernel")  # the latter two are gradients


class Layer(NamedTuple):
    """A convolution of [batch, height, width, channels] or a product of [batch, ..., channels].

    Attributes:
        inputs: their shape.
        kernel: [height, width, channels / groups, features] or [channels, features].
        stride: of both dims.
        padding: pixels before and after, of each dim.
        groups: of channels.
    """

    inputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: tuple[int, ...] = (0, 0)
    groups: int = 1

    @classmethod
    def of(cls, given: Sequence[Any]) -> "Layer":
        """From a list of JSON."""
        inputs, kernel, stride, padding, groups = given
        return cls(tuple(inputs), tuple(kernel), stride, tuple(padding), groups)

    @property
    def is_product(self) -> bool:
        return len(self.kernel) == 2

    @property
    def outputs(self) -> tuple[int, ...]:
        """Shape of the results.

        >>> Layer((16, 224, 224, 3), (7, 7, 3, 64), stride=2, padding=(3, 3)).outputs
        (16, 112, 112, 64)
        """
        if self.is_product:
            return (*self.inputs[:-1], self.kernel[-1])
        sides = zip(self.inputs[1:-1], self.kernel[:-2], self.padding, strict=True)
        sizes = ((side + 2 * pad - size) // self.stride + 1 for side, size, pad in sides)
        return (self.inputs[0], *sizes, self.kernel[-1])

    @property
    def flops(self) -> int:
        """Floating-point operations of each direction: two for each element of the results and each of its factors."""
        return 2 * math.prod(self.outputs) * math.prod(self.kernel[:-1])

    @property
    def label(self) -> str:
        """Such as `3x3/2 64>128 at 56x56`."""
        channels = f"{self.inputs[-1]}>{self.kernel[-1]}"
        if self.is_product:
            return f"{' x '.join(map(str, self.inputs[:-1]))} x {channels}"
        stride, groups = f"/{self.stride}" * (self.stride > 1), f" in {self.groups} groups" * (self.groups > 1)
        sizes = ["x".join(map(str, dims)) for dims in (self.kernel[:2], self.inputs[1:3])]
        return f"{sizes[0]}{stride} {channels}{groups} at {sizes[1]}"


def layer_turn(variant: str, index: int, direction: str) -> str:
    """What layers.py asks of its workers: a variant of layer number `index`."""
    return f"{variant} {index} {direction}"


def layer_runs(
    layers: Sequence[Layer], variants: Iterable[str], make: Callable[[Layer, str, str], Callable[[int], None]]
) -> dict[str, Callable[[int], None]]:
    """All that they may be asked; `make(layer, direction, variant)` gives what is timed."""
    return {
        layer_turn(variant, index, direction): make(layer, direction, variant)
        for index, layer in enumerate(layers)
        for direction in DIRECTIONS
        for variant in variants
    }


def worker_arguments(description: str | None, variants: Sequence[str]) -> argparse.Namespace:
    """The command line of a worker."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--side", type=int, required=True, help="of the matrices of the variant 'matmul'")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--variant", action="append", choices=list(variants), default=[])
    return parser.parse_args()
