"""Parameter shapes and batch sizes of the benchmark's workloads. Needs no JAX: other frameworks read them too."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# ---- Numbers of bytes as people write them. Needs no JAX ----------------------------------------------


_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def byte_size(text: str) -> int:
    """Bytes, with or without a unit.

    >>> byte_size("64KiB"), byte_size("100")
    (65536, 100)
    """
    found = re.fullmatch(r"([0-9]+)(B|KiB|MiB|GiB|)", text, re.ASCII)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} must be a number of bytes above 0, such as 100, 64KiB or 4MiB")
    return int(found[1]) * _UNITS[found[2]]


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """What a workload looks like from outside.

    Attributes:
        leaves: shapes of the parameters, in the order in which the forward pass uses them; kernels are
            [..., in, out], images [height, width, channels].
        example: shape of one example.
        batch: examples a host, unless told otherwise.
    """

    leaves: tuple[Shape, ...]
    example: Shape
    batch: int


def _resnet50_leaves() -> Iterator[Shape]:
    """He et al., CVPR 2016, as it is trained on ImageNet: 53 convolutions with BatchNorm, one dense layer."""

    def convolution(size: int, inputs: int, outputs: int) -> Iterator[Shape]:
        yield from ((size, size, inputs, outputs), (outputs,), (outputs,))

    yield from convolution(7, 3, 64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from convolution(1, inputs, width)
            yield from convolution(3, width, width)
            yield from convolution(1, width, 4 * width)
            if block == 0:
                yield from convolution(1, inputs, 4 * width)
            inputs = 4 * width
    yield from ((inputs, 1000), (1000,))


MIXING_WIDTH = 256  # of the matrix product that stands for a layer's compute in the workload `resnet50`

SIZES: dict[str, Sizes] = {
    # Eight equal layers: 33.6 MB, most of the step is matrix products.
    "dense": Sizes(leaves=((1024, 1024),) * 8, example=(1024,), batch=512),
    # As in VGG, one dense layer holds most of the bytes: 33.6 of 42.3 MB.
    "vgg": Sizes(
        leaves=((3, 3, 3, 32), (3, 3, 32, 64), (3, 3, 64, 128), (2048, 4096), (4096, 512), (512, 10)),
        example=(32, 32, 3),
        batch=64,
    ),
    # The 161 gradients of ResNet-50, 102.2 MB, behind a small compute of the same depth.
    "resnet50": Sizes(leaves=tuple(_resnet50_leaves()), example=(MIXING_WIDTH,), batch=32),
    # Widths that nothing divides, and one layer with 26.0 of the 37.1 MB.
    "odd": Sizes(leaves=((771, 619), (619, 1357), (1357, 4789), (4789, 301), (301, 97)), example=(771,), batch=192),
    # Latency alone: 64 leaves of 1 KB.
    "small": Sizes(leaves=((16, 16),) * 64, example=(16,), batch=8),
}
