"""AlexNet: the network of 2014 ("one weird trick"), which is torchvision's, and that of 2012, as Caffe has it."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Initializer

from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import Dtype, ExampleDropout, local_response_norm, normal_init, require_positive, scaled
from jaxnet.models.pooling import adaptive_avg_pool, max_pool


class AlexNet(nn.Module):
    """AlexNet for one device (Krizhevsky, 2014, "One weird trick"), with the same layers as torchvision's.

    It has neither groups nor response normalization, and its five convolutions have fewer channels than those of 2012.
    Weights and biases start as PyTorch's do: uniform within 1 / sqrt(inputs of a unit).

    Attributes:
        num_classes: width of the logits.
        width: factor on every hidden number of channels and units.
        dropout: rate before each hidden dense layer.
        dtype: dtype of computation; parameters are float32.
    """

    num_classes: int
    width: float = 1.0
    dropout: float = 0.5
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        x = images.astype(self.dtype)
        x = max_pool(nn.relu(self._conv(x, "features_0", 64, 11, stride=4, padding=2)), 3, 2)
        x = max_pool(nn.relu(self._conv(x, "features_3", 192, 5, padding=2)), 3, 2)
        x = nn.relu(self._conv(x, "features_6", 384, 3, padding=1))
        x = nn.relu(self._conv(x, "features_8", 256, 3, padding=1))
        x = nn.relu(self._conv(x, "features_10", 256, 3, padding=1))
        x = adaptive_avg_pool(max_pool(x, 3, 2), 6, 6)
        x = x.reshape(x.shape[0], -1)
        hidden = scaled(4096, self.width)
        for name in ("classifier_1", "classifier_4"):
            x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
            x = nn.relu(self._dense(x, name, hidden))
        return self._dense(x, "classifier_6", self.num_classes).astype(jnp.float32)

    def _conv(self, x: jax.Array, name: str, channels: int, size: int, *, padding: int, stride: int = 1) -> jax.Array:
        return Convolution(
            scaled(channels, self.width),
            (size, size),
            stride,
            padding,
            dtype=self.dtype,
            kernel_init=_KERNEL,
            bias_init=_bias(size * size * x.shape[-1]),
            name=name,
        )(x)

    def _dense(self, x: jax.Array, name: str, units: int) -> jax.Array:
        bias = _bias(x.shape[-1])
        return nn.Dense(units, dtype=self.dtype, kernel_init=_KERNEL, bias_init=bias, name=name)(x)


_KERNEL = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def _bias(inputs: int) -> Initializer:
    bound = 1 / math.sqrt(inputs)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class AlexNet2012(nn.Module):
    """AlexNet as it won ImageNet (Krizhevsky et al., 2012), or as Caffe rebuilt it.

    Convolutions 2, 4 and 5 have two groups, one for each of the two GPUs of the time. Pooling windows overlap, and the
    responses of layers 1 and 2 are normalized. Images of 227x227 give the sizes of the paper's figure. Weights start
    normal with a deviation of 0.01, biases at 1 in convolutions 2, 4, 5 and in hidden dense layers, which keeps units
    alive early.

    Attributes:
        num_classes: width of the logits.
        caffe: CaffeNet (Jia et al., 2014): pooling comes before the normalization, whose constants are Caffe's defaults
            (k 1, alpha 1e-4 / 5, instead of the paper's 2 and 1e-4); hidden dense layers start with a deviation of
            0.005.
        width: factor on every hidden number of channels and units.
        dropout: rate after each hidden dense layer.
        dtype: dtype of computation; parameters are float32.
    """

    num_classes: int
    caffe: bool = False
    width: float = 1.0
    dropout: float = 0.5
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        x = images.astype(self.dtype)
        x = self._pooled_norm(nn.relu(self._conv("conv1", 96, 11, stride=4)(x)))
        x = self._pooled_norm(nn.relu(self._conv("conv2", 256, 5, groups=2, padding=2)(x)))
        x = nn.relu(self._conv("conv3", 384, 3, padding=1)(x))
        x = nn.relu(self._conv("conv4", 384, 3, groups=2, padding=1)(x))
        x = nn.relu(self._conv("conv5", 256, 3, groups=2, padding=1)(x))
        x = max_pool(x, 3, 2, ceil=True)
        x = x.reshape(x.shape[0], -1)
        deviation, hidden = 0.005 if self.caffe else 0.01, scaled(4096, self.width)
        for name in ("fc6", "fc7"):
            x = nn.relu(self._dense(name, hidden, deviation, bias=1.0)(x))
            x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        return self._dense("fc8", self.num_classes, 0.01, bias=0.0)(x).astype(jnp.float32)

    def _pooled_norm(self, x: jax.Array) -> jax.Array:
        if self.caffe:
            return local_response_norm(max_pool(x, 3, 2, ceil=True))
        return max_pool(local_response_norm(x, alpha=5e-4, k=2.0), 3, 2, ceil=True)

    def _conv(
        self, name: str, channels: int, size: int, *, stride: int = 1, padding: int = 0, groups: int = 1
    ) -> Convolution:
        return Convolution(
            scaled(channels, self.width),
            (size, size),
            stride,
            padding,
            feature_group_count=groups,
            dtype=self.dtype,
            kernel_init=normal_init(0.01, 1.0 if name == "conv1" else self.width),
            # Biases start at 1 in the layers with two groups, and at 0 in the others.
            bias_init=nn.initializers.constant(float(groups == 2)),
            name=name,
        )

    def _dense(self, name: str, units: int, deviation: float, bias: float) -> nn.Dense:
        kernel_init, bias_init = normal_init(deviation, self.width), nn.initializers.constant(bias)
        return nn.Dense(units, dtype=self.dtype, kernel_init=kernel_init, bias_init=bias_init, name=name)
