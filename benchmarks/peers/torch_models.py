"""The workloads of `jaxnet.cost.workloads` in PyTorch: same shapes, same operations, same loss."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jaxnet.cost.shapes import MIXING_WIDTH, SIZES


def _parameter(shape: Sequence[int]) -> nn.Parameter:
    """A leaf of that shape, convolution kernels in PyTorch's order: [out, in, height, width]."""
    order = (3, 2, 0, 1) if len(shape) == 4 else range(len(shape))
    scale = math.sqrt(2 / math.prod(shape[:-1])) if len(shape) > 1 else 0.1
    return nn.Parameter((torch.randn(*shape) * scale).permute(*order).contiguous())


class Workload(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sizes = SIZES[name]
        self.leaves = nn.ParameterList([_parameter(shape) for shape in self.sizes.leaves])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.outputs(x, list(self.leaves)) ** 2).mean()

    def outputs(self, x: torch.Tensor, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError


class Dense(Workload):
    def outputs(self, x: torch.Tensor, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        for kernel in leaves[:-1]:
            x = F.relu(x @ kernel)
        return x @ leaves[-1]


class Vgg(Dense):
    def outputs(self, x: torch.Tensor, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        for kernel in leaves[:3]:
            x = F.avg_pool2d(F.relu(F.conv2d(x, kernel, padding=1)), 2)
        return super().outputs(x.flatten(1), leaves[3:])


class ResNet50(Workload):
    mix: torch.Tensor

    def __init__(self, name: str) -> None:
        super().__init__(name)
        rows = torch.arange(MIXING_WIDTH, dtype=torch.float32)
        mix = torch.cos(torch.outer(rows, rows + 0.5) * (math.pi / MIXING_WIDTH)) / math.sqrt(MIXING_WIDTH / 2)
        self.register_buffer("mix", mix)

    def outputs(self, x: torch.Tensor, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        for leaf in leaves:
            # Any order of a kernel's elements will do: all that counts is how many there are.
            inputs = math.gcd(leaf.numel(), MIXING_WIDTH)
            shift = torch.tanh(x[:, :inputs] @ leaf.view(inputs, -1)).mean(1, keepdim=True)
            x = torch.tanh(x @ self.mix + shift)
        return x


class Small(Workload):
    def outputs(self, x: torch.Tensor, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        for kernel in leaves:
            x = torch.tanh(x @ kernel)
        return x


_MODELS: dict[str, type[Workload]] = {
    "dense": Dense,
    "vgg": Vgg,
    "resnet50": ResNet50,
    "odd": Dense,
    "small": Small,
}


def make_workload(name: str) -> Workload:
    return _MODELS[name](name)


def make_batch(workload: Workload, examples: int) -> torch.Tensor:
    """Images as PyTorch has them: [examples, channels, height, width]."""
    x = torch.randn(examples, *workload.sizes.example)
    return x.permute(0, 3, 1, 2).contiguous() if x.dim() == 4 else x
