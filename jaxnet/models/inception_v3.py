"""Inception v3 (Szegedy et al., 2016), as torchvision has it."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.inception import Branch, Conv, ConvRelu, Fork, Joined, Style
from jaxnet.models.layers import Dtype, ExampleDropout, require_positive
from jaxnet.models.model import Heads
from jaxnet.models.pooling import adaptive_avg_pool, avg_pool, max_pool

AUXILIARY_WEIGHT = 0.4
SMALLEST_IMAGE = 75  # one pixel is left at the end

_mean = partial(avg_pool, size=3, stride=1, padding=1)
_halve = partial(max_pool, size=3, stride=2)


def _block_a(pooled: int) -> tuple[Branch, ...]:
    return (
        (Conv("branch1x1", 64),),
        (Conv("branch5x5_1", 48), Conv("branch5x5_2", 64, 5)),
        (Conv("branch3x3dbl_1", 64), Conv("branch3x3dbl_2", 96, 3), Conv("branch3x3dbl_3", 96, 3)),
        (_mean, Conv("branch_pool", pooled)),
    )


def _block_b() -> tuple[Branch, ...]:
    return (
        (Conv("branch3x3", 384, 3, 2, padded=False),),
        (
            Conv("branch3x3dbl_1", 64),
            Conv("branch3x3dbl_2", 96, 3),
            Conv("branch3x3dbl_3", 96, 3, 2, padded=False),
        ),
        (_halve,),
    )


def _block_c(channels: int) -> tuple[Branch, ...]:
    return (
        (Conv("branch1x1", 192),),
        (
            Conv("branch7x7_1", channels),
            Conv("branch7x7_2", channels, (1, 7)),
            Conv("branch7x7_3", 192, (7, 1)),
        ),
        (
            Conv("branch7x7dbl_1", channels),
            Conv("branch7x7dbl_2", channels, (7, 1)),
            Conv("branch7x7dbl_3", channels, (1, 7)),
            Conv("branch7x7dbl_4", channels, (7, 1)),
            Conv("branch7x7dbl_5", 192, (1, 7)),
        ),
        (_mean, Conv("branch_pool", 192)),
    )


def _block_d() -> tuple[Branch, ...]:
    return (
        (Conv("branch3x3_1", 192), Conv("branch3x3_2", 320, 3, 2, padded=False)),
        (
            Conv("branch7x7x3_1", 192),
            Conv("branch7x7x3_2", 192, (1, 7)),
            Conv("branch7x7x3_3", 192, (7, 1)),
            Conv("branch7x7x3_4", 192, 3, 2, padded=False),
        ),
        (_halve,),
    )


def _block_e() -> tuple[Branch, ...]:
    return (
        (Conv("branch1x1", 320),),
        (
            Conv("branch3x3_1", 384),
            Fork((Conv("branch3x3_2a", 384, (1, 3)), Conv("branch3x3_2b", 384, (3, 1)))),
        ),
        (
            Conv("branch3x3dbl_1", 448),
            Conv("branch3x3dbl_2", 384, 3),
            Fork((Conv("branch3x3dbl_3a", 384, (1, 3)), Conv("branch3x3dbl_3b", 384, (3, 1)))),
        ),
        (_mean, Conv("branch_pool", 192)),
    )


BEFORE_AUXILIARY = {
    "Mixed_5b": _block_a(32),
    "Mixed_5c": _block_a(64),
    "Mixed_5d": _block_a(64),
    "Mixed_6a": _block_b(),
    "Mixed_6b": _block_c(128),
    "Mixed_6c": _block_c(160),
    "Mixed_6d": _block_c(160),
    "Mixed_6e": _block_c(192),
}
AFTER_AUXILIARY = {"Mixed_7a": _block_d(), "Mixed_7b": _block_e(), "Mixed_7c": _block_e()}


class InceptionV3(nn.Module):
    """Eleven Inception modules, and an auxiliary head that exists in training only. In training it returns `Heads`.

    Attributes:
        num_classes: width of the logits.
        auxiliary: have the auxiliary head.
        width: multiplies the channels.
        dropout: rate before the last layer.
        dtype: dtype of computation; parameters, statistics and logits are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    auxiliary: bool = True
    width: float = 1.0
    dropout: float = 0.5
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array | Heads:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels].

        Raises:
            InputError: the images are smaller than 75x75.
        """
        height, width = images.shape[1:3]
        if min(height, width) < SMALLEST_IMAGE:
            raise InputError(
                f"images of {height}x{width} are too small for Inception v3: wanted {SMALLEST_IMAGE}x{SMALLEST_IMAGE} "
                "or larger"
            )
        style = Style(True, nn.initializers.truncated_normal(0.1), 0.0, self.width, self.dtype, self.norm_axes)
        x = _stem(images.astype(self.dtype), style, train)
        for name, branches in BEFORE_AUXILIARY.items():
            x = Joined(branches, style, name=name)(x, train=train)
        heads = []
        if self.auxiliary and (train or self.is_initializing()):
            heads.append((AUXILIARY_WEIGHT, AuxiliaryHead(self.num_classes, style, name="AuxLogits")(x, train=train)))
        for name, branches in AFTER_AUXILIARY.items():
            x = Joined(branches, style, name=name)(x, train=train)
        x = ExampleDropout(self.dropout)(x.mean((1, 2)), train=train, keys=keys)
        fc = nn.Dense(self.num_classes, dtype=self.dtype, kernel_init=style.kernel, name="fc")
        logits = fc(x).astype(jnp.float32)
        return Heads(logits, tuple(heads)) if train and heads else logits


def _stem(x: jax.Array, style: Style, train: bool) -> jax.Array:
    def conv(x: jax.Array, layer: Conv) -> jax.Array:
        return ConvRelu(layer, style, name=layer.name)(x, train=train)

    x = conv(x, Conv("Conv2d_1a_3x3", 32, 3, 2, padded=False))
    x = conv(x, Conv("Conv2d_2a_3x3", 32, 3, padded=False))
    x = _halve(conv(x, Conv("Conv2d_2b_3x3", 64, 3)))
    x = conv(x, Conv("Conv2d_3b_1x1", 80))
    return _halve(conv(x, Conv("Conv2d_4a_3x3", 192, 3, padded=False)))


class AuxiliaryHead(nn.Module):
    """A classifier of the output of the modules in the middle."""

    num_classes: int
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Return logits, float32 [batch, num_classes]."""
        # 5x5 windows turn the 17x17 pixels of 299x299 images into 5x5. Maps of smaller images are averaged to 5x5 too.
        x = avg_pool(x, 5, 3) if min(x.shape[1:3]) >= 17 else adaptive_avg_pool(x, 5, 5)
        x = ConvRelu(Conv("conv0", 128), self.style, name="conv0")(x, train=train)
        wide = self.style._replace(kernel=nn.initializers.truncated_normal(0.01))
        x = ConvRelu(Conv("conv1", 768, 5, padded=False), wide, name="conv1")(x, train=train)
        start = nn.initializers.truncated_normal(0.001)
        fc = nn.Dense(self.num_classes, dtype=self.style.dtype, kernel_init=start, name="fc")
        return fc(x.mean((1, 2))).astype(jnp.float32)
