"""Building blocks of the Inception networks: convolutions, and modules whose branches are joined."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import BatchNorm, Dtype, scaled

Pool = Callable[[jax.Array], jax.Array]


class Conv(NamedTuple):
    """A convolution of a branch.

    Attributes:
        name: the name of the layer.
        channels: output channels, before `width` multiplies them.
        size: height and width of its windows, odd.
        stride: distance between windows.
        padded: whether half a window is added on each side.
    """

    name: str
    channels: int
    size: int | tuple[int, int] = 1
    stride: int = 1
    padded: bool = True


class Fork(NamedTuple):
    """Convolutions of the same input, whose outputs are joined."""

    convs: tuple[Conv, ...]


Branch = tuple[Conv | Pool | Fork, ...]
"""Layers one after the other."""


class Style(NamedTuple):
    """What all convolutions of a network have in common.

    Attributes:
        norm: BatchNorm (epsilon 0.001) after each convolution, instead of a bias.
        kernel: initializer of the kernels.
        bias: initial value of the biases.
        width: multiplies the channels.
        dtype: the dtype of computation.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    norm: bool
    kernel: Initializer
    bias: float
    width: float
    dtype: Dtype
    norm_axes: tuple[str, ...]


class ConvRelu(nn.Module):
    """A convolution, BatchNorm if the style has it, and ReLU. The layers are `conv` and `bn`, as in torchvision."""

    layer: Conv
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map [batch, h, w, c] to [batch, h', w', channels]."""
        layer, style = self.layer, self.style
        size = layer.size if isinstance(layer.size, tuple) else (layer.size, layer.size)
        conv = Convolution(
            scaled(layer.channels, style.width),
            size,
            layer.stride,
            [(n // 2, n // 2) if layer.padded else (0, 0) for n in size],
            use_bias=not style.norm,
            dtype=style.dtype,
            kernel_init=style.kernel,
            bias_init=nn.initializers.constant(style.bias),
            name="conv",
        )
        x = conv(x)
        if style.norm:
            x = BatchNorm(style.norm_axes, style.dtype, train=train, name="bn", epsilon=1e-3)(x)
        return nn.relu(x)


class Joined(nn.Module):
    """An Inception module: branches over the same input, whose outputs are joined along the channels."""

    branches: tuple[Branch, ...]
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map [batch, h, w, c] to [batch, h', w', sum of the branches' channels]."""

        def step(x: jax.Array, part: Conv | Pool | Fork) -> jax.Array:
            if isinstance(part, Conv):
                return ConvRelu(part, self.style, name=part.name)(x, train=train)
            if isinstance(part, Fork):
                return jnp.concatenate([step(x, conv) for conv in part.convs], -1)
            return part(x)

        outputs = []
        for branch in self.branches:
            y = x
            for part in branch:
                y = step(y, part)
            outputs.append(y)
        return jnp.concatenate(outputs, -1)
