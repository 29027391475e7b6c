"""Small convolutional networks for small images: `CNN`, and the two of Caffe's CIFAR-10 example."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import (
    BatchNorm,
    Dtype,
    ExampleDropout,
    normal_init,
    require_layers,
    require_positive,
    require_rate,
    scaled,
    spatial_response_norm,
)
from jaxnet.models.pooling import avg_pool, max_pool


class CNN(nn.Module):
    """Blocks of 3x3 convolutions and 2x2 pooling, then two dense layers.

    Attributes:
        num_classes: width of the logits.
        widths: channels of each block; each block halves height and width.
        convs: convolutions in each block.
        hidden: units of the hidden dense layer.
        norm: BatchNorm after each convolution.
        dropout: rate before the last layer.
        smooth: GELU and mean pooling instead of ReLU and max pooling. For comparing runs that sum in another order: at
            the kinks of ReLU and max a difference in the last bit starts to grow.
        dtype: dtype of computation; parameters are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    widths: tuple[int, ...] = (32, 64)
    convs: int = 1
    hidden: int = 128
    norm: bool = False
    dropout: float = 0.0
    smooth: bool = False
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes, widths=self.widths, convs=self.convs, hidden=self.hidden)
        require_layers(convs=self.convs * len(self.widths))
        require_rate(self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        _, height, width, _ = images.shape
        halvings = min(height, width).bit_length() - 1
        if len(self.widths) > halvings:
            raise InputError(
                f"images of {height}x{width} are too small for the {len(self.widths)} blocks of model.widths, each of "
                f"which halves them: wanted at most {halvings}"
            )
        activation, pool = (nn.gelu, avg_pool) if self.smooth else (nn.relu, max_pool)
        x = images.astype(self.dtype)
        layer = 0
        for width in self.widths:
            for _ in range(self.convs):
                x = Convolution(width, (3, 3), use_bias=not self.norm, dtype=self.dtype, name=f"conv_{layer}")(x)
                if self.norm:
                    x = BatchNorm(self.norm_axes, self.dtype, train=train, name=f"norm_{layer}")(x)
                x = activation(x)
                layer += 1
            x = pool(x, 2, 2)
        x = x.reshape(x.shape[0], -1)
        x = activation(nn.Dense(self.hidden, dtype=self.dtype, name="dense_0")(x))
        x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        return nn.Dense(self.num_classes, dtype=self.dtype, name="dense_1")(x).astype(jnp.float32)


class Cifar10(nn.Module):
    """Three 5x5 convolutions with overlapping pooling: max pooling before the first ReLU, mean pooling afterwards.

    These are the networks of Caffe's CIFAR-10 example, after Krizhevsky's cuda-convnet. CIFAR10-quick has two dense
    layers with nothing between them. CIFAR10-full has one, and normalizes the responses of its first two layers within
    each channel. Weights start normal, biases at 0; the deviations suit images in Caffe's scale, 0 to 255 minus the
    mean.

    Attributes:
        num_classes: width of the logits.
        full: CIFAR10-full rather than CIFAR10-quick.
        width: factor on every hidden number of channels and units.
        dtype: dtype of computation; parameters are float32.
    """

    num_classes: int
    full: bool = False
    width: float = 1.0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        del train, keys
        norm = spatial_response_norm if self.full else _same
        x = images.astype(self.dtype)
        x = norm(nn.relu(max_pool(self._conv("conv1", 32, 0.0001)(x), 3, 2, ceil=True)))
        x = norm(avg_pool(nn.relu(self._conv("conv2", 32, 0.01)(x)), 3, 2, ceil=True))
        x = avg_pool(nn.relu(self._conv("conv3", 64, 0.01)(x)), 3, 2, ceil=True)
        x = x.reshape(x.shape[0], -1)
        if self.full:
            return self._dense("ip1", self.num_classes, 0.01)(x).astype(jnp.float32)
        x = self._dense("ip1", scaled(64, self.width), 0.1)(x)
        return self._dense("ip2", self.num_classes, 0.1)(x).astype(jnp.float32)

    def _conv(self, name: str, channels: int, deviation: float) -> Convolution:
        init = normal_init(deviation, 1.0 if name == "conv1" else self.width)
        return Convolution(
            scaled(channels, self.width), (5, 5), padding=2, dtype=self.dtype, kernel_init=init, name=name
        )

    def _dense(self, name: str, units: int, deviation: float) -> nn.Dense:
        return nn.Dense(units, dtype=self.dtype, kernel_init=normal_init(deviation, self.width), name=name)


def _same(x: jax.Array) -> jax.Array:
    return x
