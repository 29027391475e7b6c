"""VGG networks of 11 to 19 layers (Simonyan and Zisserman, 2015), with or without BatchNorm, as in torchvision."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import BatchNorm, Dtype, ExampleDropout, normal_init, require_positive, scaled
from jaxnet.models.pooling import adaptive_avg_pool, max_pool

_CHANNELS = (64, 128, 256, 512, 512)
_CONVS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # in each block


class VGG(nn.Module):
    """Five blocks of 3x3 convolutions, each of which halves the image, and three dense layers.

    Convolutions start as in He et al. (2015), scaled by their outputs (fan-out); dense layers start normal with a
    deviation of 0.01.

    Attributes:
        num_classes: width of the logits.
        depth: layers with weights: 11, 13, 16 or 19 (the paper's A, B, D and E).
        norm: BatchNorm after each convolution, which keeps its bias.
        width: factor on every hidden number of channels and units.
        dropout: rate after each hidden dense layer.
        dtype: dtype of computation; parameters and statistics are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    depth: int = 16
    norm: bool = False
    width: float = 1.0
    dropout: float = 0.5
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        if self.depth not in _CONVS:
            raise InputError(f"depth must be one of {', '.join(map(str, _CONVS))}, got {self.depth}")
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        x = images.astype(self.dtype)
        place = 0  # index in torchvision's sequence of layers, by which they are named
        for convs, channels in zip(_CONVS[self.depth], _CHANNELS, strict=True):
            for _ in range(convs):
                x = nn.relu(self._conv(x, place, channels, train=train))
                place += 3 if self.norm else 2
            x = max_pool(x, 2, 2)
            place += 1
        x = adaptive_avg_pool(x, 7, 7)
        x = x.reshape(x.shape[0], -1)
        hidden = scaled(4096, self.width)
        for name in ("classifier_0", "classifier_3"):
            x = nn.relu(self._dense(name, hidden)(x))
            x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        return self._dense("classifier_6", self.num_classes)(x).astype(jnp.float32)

    def _conv(self, x: jax.Array, place: int, channels: int, *, train: bool) -> jax.Array:
        init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
        channels = scaled(channels, self.width)
        name = f"features_{place}"
        x = Convolution(channels, (3, 3), padding=1, dtype=self.dtype, kernel_init=init, name=name)(x)
        if not self.norm:
            return x
        return BatchNorm(self.norm_axes, self.dtype, train=train, name=f"features_{place + 1}")(x)

    def _dense(self, name: str, units: int) -> nn.Dense:
        return nn.Dense(units, dtype=self.dtype, kernel_init=normal_init(0.01, self.width), name=name)
