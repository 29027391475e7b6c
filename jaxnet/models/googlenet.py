"""GoogLeNet, the first Inception network (Szegedy et al., 2015), as published and as torchvision has it."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.models.inception import Branch, Conv, ConvRelu, Joined, Style
from jaxnet.models.layers import Dtype, ExampleDropout, local_response_norm, require_positive, scaled
from jaxnet.models.model import Heads
from jaxnet.models.pooling import adaptive_avg_pool, avg_pool, max_pool

# Channels of each module, from Table 1 of the paper: 1x1; 1x1 and 3x3; 1x1 and 5x5; 1x1 after pooling.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
AUXILIARY = {"4a": "aux1", "4d": "aux2"}  # the modules that feed the auxiliary heads
AUXILIARY_WEIGHT = 0.3


class GoogLeNet(nn.Module):
    """Nine Inception modules, and two auxiliary heads that exist in training only.

    Without BatchNorm it is the paper's network, with Caffe's initial values. With BatchNorm it is torchvision's, whose
    weights came from TensorFlow and whose 5x5 windows are 3x3. In training it returns `Heads`.

    Attributes:
        num_classes: width of the logits.
        norm: torchvision's network, rather than the paper's with its response normalization.
        auxiliary: have the auxiliary heads.
        width: multiplies the channels and the units of the auxiliary heads.
        dropout: rate before the last layer.
        auxiliary_dropout: rate before the last layer of each auxiliary head.
        dtype: dtype of computation; parameters, statistics and logits are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    norm: bool = False
    auxiliary: bool = True
    width: float = 1.0
    dropout: float = 0.4
    auxiliary_dropout: float = 0.7
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array | Heads:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        style = _style(self.norm, self.width, self.dtype, self.norm_axes)
        x = self._stem(images.astype(self.dtype), style, train)
        heads = []
        for name, channels in MODULES.items():
            if name == "4a":
                x = max_pool(x, 3, 2, ceil=True)
            if name == "5a":
                x = max_pool(x, 2 if self.norm else 3, 2, ceil=True)
            x = Joined(_branches(channels, 3 if self.norm else 5), style, name=f"inception{name}")(x, train=train)
            if self.auxiliary and name in AUXILIARY and (train or self.is_initializing()):
                head = AuxiliaryHead(self.num_classes, self.auxiliary_dropout, style, name=AUXILIARY[name])
                heads.append((AUXILIARY_WEIGHT, head(x, train=train, keys=keys)))
        x = ExampleDropout(self.dropout)(x.mean((1, 2)), train=train, keys=keys)
        fc = nn.Dense(self.num_classes, dtype=self.dtype, kernel_init=style.kernel, name="fc")
        logits = fc(x).astype(jnp.float32)
        return Heads(logits, tuple(heads)) if train and heads else logits

    def _stem(self, x: jax.Array, style: Style, train: bool) -> jax.Array:
        def conv(x: jax.Array, layer: Conv) -> jax.Array:
            return ConvRelu(layer, style, name=layer.name)(x, train=train)

        def normalized(x: jax.Array) -> jax.Array:
            return x if self.norm else local_response_norm(x)

        x = max_pool(conv(x, Conv("conv1", 64, 7, stride=2)), 3, 2, ceil=True)
        x = conv(conv(normalized(x), Conv("conv2", 64)), Conv("conv3", 192, 3))
        return max_pool(normalized(x), 3, 2, ceil=True)


class AuxiliaryHead(nn.Module):
    """A classifier of the output of a module in the middle."""

    num_classes: int
    dropout: float
    style: Style

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """Return logits, float32 [batch, num_classes]."""
        dense = partial(nn.Dense, dtype=self.style.dtype, kernel_init=self.style.kernel)
        # The paper's 5x5 windows turn 14x14 pixels into 4x4. Maps of smaller images are averaged to 4x4 too.
        published = not self.style.norm and min(x.shape[1:3]) >= 14
        x = avg_pool(x, 5, 3) if published else adaptive_avg_pool(x, 4, 4)
        x = ConvRelu(Conv("conv", 128), self.style, name="conv")(x, train=train)
        bias = nn.initializers.constant(self.style.bias)
        x = nn.relu(dense(scaled(1024, self.style.width), bias_init=bias, name="fc1")(x.reshape(x.shape[0], -1)))
        x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        return dense(self.num_classes, name="fc2")(x).astype(jnp.float32)


def _branches(channels: tuple[int, int, int, int, int, int], wide: int) -> tuple[Branch, ...]:
    one, reduce3, three, reduce5, five, pooled = channels
    return (
        (Conv("branch1", one),),
        (Conv("branch2_0", reduce3), Conv("branch2_1", three, 3)),
        (Conv("branch3_0", reduce5), Conv("branch3_1", five, wide)),
        (partial(max_pool, size=3, stride=1, padding=1), Conv("branch4_1", pooled)),
    )


def _style(norm: bool, width: float, dtype: Dtype, norm_axes: tuple[str, ...]) -> Style:
    if norm:
        return Style(True, nn.initializers.truncated_normal(0.01), 0.0, width, dtype, norm_axes)
    return Style(False, nn.initializers.lecun_uniform(), 0.2, width, dtype, norm_axes)  # Caffe's 'xavier'
