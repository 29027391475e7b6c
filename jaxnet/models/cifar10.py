"""The two networks of Caffe's CIFAR-10 example, after Krizhevsky's cuda-convnet."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import Dtype, normal_init, require_positive, scaled, spatial_response_norm
from jaxnet.models.pooling import avg_pool, max_pool


class Cifar10(nn.Module):
    """Three 5x5 convolutions with overlapping pooling: first by the maximum, before the ReLU, then by the mean.

    CIFAR10-quick has two dense layers with nothing between them; CIFAR10-full has one, and normalizes the responses
    of its first two layers within each channel. Weights start normal, biases at 0:
    the deviations suit images in Caffe's scale, 0 to 255 less the mean.

    Attributes:
        num_classes: width of the logits.
        full: CIFAR10-full rather than CIFAR10-quick.
        width: factor on every hidden number of channels and units.
        dtype: of computation; parameters are float32.
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
        """Logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
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
