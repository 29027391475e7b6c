"""Residual networks (He et al., 2016): for ImageNet and for CIFAR-10, versions 1 and 1.5, and ResNet-D."""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import BatchNorm, Dtype, kept_relu, require_layers, require_positive, scaled
from jaxnet.models.pooling import avg_pool, max_pool

BlockName = Literal["basic", "bottleneck"]
StemName = Literal["imagenet", "deep", "small"]

kaiming = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # He et al. (2015): a ReLU halves the variance


class _Residual(nn.Module):
    """What the two kinds of block share.

    Attributes:
        channels: channels of the 3x3 convolutions.
        stride: stride of the block.
        stride_in_1x1: a bottleneck strides in its first convolution, not in its 3x3.
        average_down: the shortcut averages 2x2 pixels and then projects, instead of projecting every other pixel.
        pad_shortcuts: the shortcut takes every other pixel, and fills new channels with zeros.
        dtype: dtype of computation.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    channels: int
    stride: int
    stride_in_1x1: bool
    average_down: bool
    pad_shortcuts: bool
    dtype: Dtype
    norm_axes: tuple[str, ...]

    def conv(self, x: jax.Array, channels: int, size: int, stride: int, name: str) -> jax.Array:
        return conv(x, channels, size, stride, self.dtype, name)

    def norm(self, x: jax.Array, name: str, train: bool, zero: bool = False) -> jax.Array:
        return BatchNorm(self.norm_axes, self.dtype, train=train, name=name, zero=zero)(x)

    def shortcut(self, x: jax.Array, channels: int, train: bool) -> jax.Array:
        """Return `x`, with `channels` channels and the block's stride."""
        if self.stride == 1 and x.shape[-1] == channels:
            return x
        if self.pad_shortcuts:
            every_other = x[:, :: self.stride, :: self.stride]
            return jnp.pad(every_other, ((0, 0), (0, 0), (0, 0), (0, channels - x.shape[-1])))
        stride, index = self.stride, 0
        if self.average_down:
            if stride > 1:
                x = avg_pool(x, stride, stride, ceil=True, count_include_pad=False)
            stride, index = 1, 1  # pooling is downsample_0, which has no parameters
        x = self.conv(x, channels, 1, stride, f"downsample_{index}")
        return self.norm(x, f"downsample_{index + 1}", train)


class BasicBlock(_Residual):
    """Two 3x3 convolutions."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map [batch, h, w, c] to [batch, h / stride, w / stride, channels]."""
        y = nn.relu(self.norm(self.conv(x, self.channels, 3, self.stride, "conv1"), "bn1", train))
        y = self.norm(self.conv(y, self.channels, 3, 1, "conv2"), "bn2", train, zero=True)
        return kept_relu(y + self.shortcut(x, self.channels, train))


class Bottleneck(_Residual):
    """A 1x1, a 3x3 and a 1x1 convolution; the last has four times the channels."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map [batch, h, w, c] to [batch, h / stride, w / stride, 4 channels]."""
        first, second = (self.stride, 1) if self.stride_in_1x1 else (1, self.stride)
        y = nn.relu(self.norm(self.conv(x, self.channels, 1, first, "conv1"), "bn1", train))
        y = nn.relu(self.norm(self.conv(y, self.channels, 3, second, "conv2"), "bn2", train))
        y = self.norm(self.conv(y, 4 * self.channels, 1, 1, "conv3"), "bn3", train, zero=True)
        return kept_relu(y + self.shortcut(x, 4 * self.channels, train))


BLOCKS = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNet(nn.Module):
    """A residual network. The functions below make the ones with names. Parameters have torchvision's names.

    The last scale of each block starts at zero, so that every block starts as its shortcut (Goyal et al., 2017).

    Attributes:
        num_classes: width of the logits.
        depths: blocks in each stage; each stage but the first halves height and width.
        block: 'basic' or 'bottleneck'.
        stem: 'imagenet': a 7x7 convolution and a pooling, each of stride 2; 'deep': three 3x3 convolutions instead of
            the 7x7 (ResNet-D); 'small': one 3x3 convolution of stride 1 and no pooling, for small images.
        channels: channels of the first stage; each further stage has twice as many.
        stride_in_1x1: bottlenecks stride in their first 1x1 convolution (version 1), not in their 3x3 (version 1.5).
        average_down: shortcuts average 2x2 pixels before they project (ResNet-D).
        pad_shortcuts: shortcuts do not project: they take every other pixel and fill new channels with zeros (option A
            of the paper, used in its networks for CIFAR-10).
        width: multiplies the channels.
        dtype: dtype of computation; parameters, statistics and logits are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    depths: tuple[int, ...] = (3, 4, 6, 3)
    block: BlockName = "bottleneck"
    stem: StemName = "imagenet"
    channels: int = 64
    stride_in_1x1: bool = False
    average_down: bool = False
    pad_shortcuts: bool = False
    width: float = 1.0
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes, depths=self.depths, channels=self.channels)
        require_layers(depths=sum(self.depths))
        if self.stride_in_1x1 and self.block == "basic":
            raise InputError("stride_in_1x1 needs bottlenecks: the basic block has no 1x1 convolution")
        if self.pad_shortcuts and (self.average_down or self.block == "bottleneck"):
            raise InputError("pad_shortcuts needs basic blocks, and shortcuts that do not average")
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        del keys
        x = self._stem(images.astype(self.dtype), train)
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                block = BLOCKS[self.block](
                    channels=scaled(self.channels * 2**stage, self.width),
                    stride=2 if stage > 0 and index == 0 else 1,
                    stride_in_1x1=self.stride_in_1x1,
                    average_down=self.average_down,
                    pad_shortcuts=self.pad_shortcuts,
                    dtype=self.dtype,
                    norm_axes=self.norm_axes,
                    name=f"layer{stage + 1}_{index}",
                )
                x = block(x, train=train)
        x = x.mean((1, 2))
        classifier = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # PyTorch's, as in torchvision
        return nn.Dense(self.num_classes, dtype=self.dtype, kernel_init=classifier, name="fc")(x).astype(jnp.float32)

    def _stem(self, x: jax.Array, train: bool) -> jax.Array:
        def norm(x: jax.Array, name: str) -> jax.Array:
            return BatchNorm(self.norm_axes, self.dtype, train=train, name=name)(x)

        channels, half = scaled(self.channels, self.width), scaled(self.channels // 2, self.width)
        if self.stem == "deep":
            x = nn.relu(norm(conv(x, half, 3, 2, self.dtype, "conv1_0"), "conv1_1"))
            x = nn.relu(norm(conv(x, half, 3, 1, self.dtype, "conv1_3"), "conv1_4"))
            x = conv(x, channels, 3, 1, self.dtype, "conv1_6")
        else:
            size, stride = (3, 1) if self.stem == "small" else (7, 2)
            x = conv(x, channels, size, stride, self.dtype, "conv1")
        x = norm(x, "bn1")
        # The papers pool after the ReLU. Pooling first gives the same values and gradients with a quarter of the work.
        return kept_relu(x if self.stem == "small" else max_pool(x, 3, 2, padding=1))


def conv(x: jax.Array, channels: int, size: int, stride: int, dtype: str, name: str) -> jax.Array:
    """Convolve without bias, padded by half the kernel on every side (Flax's 'SAME' pads otherwise at stride 2)."""
    layer = Convolution(
        channels, (size, size), stride, size // 2, use_bias=False, dtype=dtype, kernel_init=kaiming, name=name
    )
    return layer(x)


def resnet18(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-18, with any other field of `ResNet`.

    >>> resnet18(num_classes=10, stem="small", width=0.25).depths
    (2, 2, 2, 2)
    """
    return ResNet(num_classes, (2, 2, 2, 2), "basic", **fields)


def resnet34(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-34."""
    return ResNet(num_classes, (3, 4, 6, 3), "basic", **fields)


def resnet50(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-50, version 1.5: the stride is in the 3x3 convolution, as in torchvision."""
    return ResNet(num_classes, (3, 4, 6, 3), **fields)


def resnet50_v1(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-50 as first published: the stride is in the 1x1 convolution."""
    return resnet50(num_classes, stride_in_1x1=True, **fields)


def resnet50_d(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-50-D (He et al., 2019): a deep stem, and shortcuts that average."""
    return resnet50(num_classes, stem="deep", average_down=True, **fields)


def resnet101(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-101, version 1.5."""
    return ResNet(num_classes, (3, 4, 23, 3), **fields)


def resnet152(num_classes: int = 1000, **fields: Any) -> ResNet:
    """ResNet-152, version 1.5."""
    return ResNet(num_classes, (3, 8, 36, 3), **fields)


def cifar_resnet(layers: int = 20, num_classes: int = 10, **fields: Any) -> ResNet:
    """The networks of He et al. (2016), section 4.2, for images of 32x32: 16, 32 and 64 channels, no projections.

    Args:
        layers: 20, 32, 44, 56, 110 or another `6 n + 2`.
        num_classes: width of the logits.
        fields: any other field of `ResNet`.
    """
    blocks, rest = divmod(layers - 2, 6)
    if blocks < 1 or rest:
        raise InputError(f"layers must be 6 n + 2, such as 20, 32 or 56, got {layers}")
    return ResNet(num_classes, (blocks,) * 3, "basic", "small", channels=16, pad_shortcuts=True, **fields)
