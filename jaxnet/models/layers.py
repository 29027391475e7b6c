"""Layers that the networks share: BatchNorm, dropout by example, response normalization, and checks of fields."""

import math
from typing import Literal
from zlib import crc32

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Initializer
from jax import lax

from jaxnet.errors import InputError
from jaxnet.models.pooling import avg_pool

# ---- Fields of networks --------------------------------------------------------------------------------

Dtype = Literal["float32", "bfloat16", "float16"]


def require_positive(**fields: int | tuple[int, ...]) -> None:
    """Raise InputError, naming the field, unless each is at least 1, or a tuple of such numbers.

    >>> require_positive(convs=2, widths=(8, 16))
    """
    for name, value in fields.items():
        if isinstance(value, int):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        elif min(value, default=0) < 1:
            raise InputError(f"{name} must be one or more numbers of at least 1, got {value}")


_MOST_LAYERS = 1000


def require_layers(**fields: int) -> None:
    """Raise InputError, naming the field, unless a network has 1 to 1000 of these layers.

    A checkpoint of a stranger may say any number.

    >>> require_layers(depth=12)
    """
    for name, value in fields.items():
        if not 1 <= value <= _MOST_LAYERS:
            raise InputError(
                f"{name} must be 1 to {_MOST_LAYERS} layers in all, because each is traced and compiled by itself, got "
                f"{value}"
            )


def require_rate(dropout: float) -> None:
    """Raise InputError unless `dropout` is a rate at which units can be dropped.

    >>> require_rate(0.5)
    """
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1, got {dropout}")


def scaled(channels: int, width: float) -> int:
    """Return `channels` times `width`, rounded to a multiple of 8 and at least 8.

    >>> [scaled(64, width) for width in (1.0, 0.3, 0.01)]
    [64, 16, 8]

    Raises:
        InputError: the width is not positive.
    """
    if not 0 < width < float("inf"):
        raise InputError(f"width must be above 0, got {width}")
    return max(8, 8 * int(channels * width / 8 + 0.5))


def normal_init(deviation: float, width: float = 1.0) -> Initializer:
    """Return normal initial weights, with a deviation that a source states for a network of width 1.

    A sum over `width` times as many inputs has a deviation of sqrt(width) times the original, again in every layer. So
    the weights' deviation is divided by that, and a narrow network passes on signals of the same size. Use a width of
    1 for layers fed by images.
    """
    return nn.initializers.normal(deviation / math.sqrt(width))


# ---- Activation and dropout ----------------------------------------------------------------------------


def kept(x: jax.Array) -> jax.Array:
    """The same array, which XLA:CPU computes once and keeps, and not again for each of its readers."""
    result: jax.Array = lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda y: y)
    return result


@jax.custom_jvp
def kept_relu(x: jax.Array) -> jax.Array:
    """Return `max(x, 0)` and keep it for the gradient: for the end of a residual block.

    XLA:CPU would recompute what the gradient needs. In a chain of residual blocks the end of each block depends on the
    ends of all blocks before it, so they would be recomputed once for every reader. An optimization barrier prevents
    that. Values and gradients are those of `flax.linen.relu`.

    >>> jax.vmap(jax.value_and_grad(kept_relu))(jnp.array([-1.0, 0.0, 2.0]))[1].tolist()
    [0.0, 0.0, 1.0]
    """
    return kept(nn.relu(x))


@kept_relu.defjvp
def _kept_relu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = kept_relu(*primals)
    return y, jnp.where(y > 0, *tangents, 0)


class ExampleDropout(nn.Module):
    """Dropout whose randomness belongs to the example, not to the device that computes it.

    The same example at the same step drops the same units on any number of devices or processes. Each layer of a
    network drops other units: its path is folded into the key.
    """

    rate: float

    def __post_init__(self) -> None:
        require_rate(self.rate)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """Drop units of `x`, [batch, ...], by the key of each example; `keys` is [batch]."""
        if not train or self.rate == 0:
            return x
        if keys is None:
            raise ValueError("dropout in training needs one random key per example: pass keys")
        layer = crc32("/".join(self.path).encode())

        def keeps(key: jax.Array) -> jax.Array:
            return jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - self.rate, x.shape[1:])

        keep = jax.vmap(keeps)(keys)
        return jnp.where(keep, x / (1 - self.rate), jnp.zeros_like(x))


# ---- Normalization --------------------------------------------------------------------------------------


class BatchNorm(nn.Module):
    """`flax.linen.BatchNorm` of the last dim, with PyTorch's constants, the same variables and float32 statistics.

    It computes `y = a x + b` with `a = scale / sqrt(variance + epsilon)` and `b = bias - mean a`, rather than
    `(x - mean) a + bias`: the gradient then needs `x` alone, and not also `x - mean`. On CPUs a training step of
    ResNet-50 maps a quarter less scratch memory.

    Attributes:
        axes: mesh axes that share the statistics of a batch; none: each device normalizes by its own.
        dtype: dtype of the result.
        train: normalize by the batch instead of the running average.
        zero: start the scale at 0, so that a residual branch starts as the identity (Goyal et al., 2017).
        epsilon: added to the variance.
        momentum: fraction of the old running average that a step keeps: 1 - PyTorch's momentum.
    """

    axes: tuple[str, ...]
    dtype: str
    train: bool
    zero: bool = False
    epsilon: float = 1e-5
    momentum: float = 0.9

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize [..., channels] over all other dimensions."""
        shape = (x.shape[-1],)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        running_variance = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        scale = self.param("scale", nn.initializers.zeros if self.zero else nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        mean, variance = running_mean.value, running_variance.value
        wide = x.astype(jnp.float32)
        if self.train:
            mean, variance = self._statistics(wide)
            if not self.is_initializing():
                for running, value in ((running_mean, mean), (running_variance, variance)):
                    running.value = self.momentum * running.value + (1 - self.momentum) * value
        factor = scale * lax.rsqrt(variance + self.epsilon)
        factor, offset = (jnp.expand_dims(value, range(x.ndim - 1)) for value in (factor, bias - mean * factor))
        return (wide * factor + offset).astype(self.dtype)

    def _statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        others = tuple(range(x.ndim - 1))
        moments = jnp.stack([x.mean(others), (x * x).mean(others)])
        if self.axes and not self.is_initializing():
            moments = lax.pmean(moments, self.axes)
        mean, square = moments
        return mean, jnp.maximum(0, square - mean * mean)


def local_response_norm(
    x: jax.Array, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> jax.Array:
    """Return `x / (k + alpha / size * sum of x**2 over the `size` nearest channels) ** beta`, of [..., channels].

    Channels beyond the first and the last count as zero. Caffe and PyTorch divide alpha by the size, as here; the paper
    (Krizhevsky et al., 2012, section 3.3) does not, so that its k=2, alpha=1e-4 over 5 channels is `alpha=5e-4, k=2`.
    Sums are float32: the squares of float16 activations overflow above 256.

    >>> local_response_norm(jnp.array([[1.0, 1.0, 0.0]]), size=3, alpha=3.0, beta=1.0, k=2.0).tolist()
    [[0.25, 0.25, 0.0]]
    """
    half = _half(size)
    wide = x.astype(jnp.float32)
    squares = jnp.pad(jnp.square(wide), [(0, 0)] * (x.ndim - 1) + [(half, half)])
    # One addition per neighbour: XLA fuses these with what follows, but not a window over the last dim.
    sums = sum(squares[..., start : start + x.shape[-1]] for start in range(size))
    return (wide * (k + alpha / size * sums) ** -beta).astype(x.dtype)


def spatial_response_norm(x: jax.Array, size: int = 3, alpha: float = 5e-5, beta: float = 0.75) -> jax.Array:
    """Return `x / (1 + alpha * mean of x**2 over the size x size nearest pixels) ** beta`, of [batch, h, w, channels].

    Caffe's response normalization within a channel (WITHIN_CHANNEL): pixels beyond the border count as zeros in the
    mean.
    """
    wide = x.astype(jnp.float32)
    means = avg_pool(jnp.square(wide), size, 1, padding=_half(size))
    return (wide * (1 + alpha * means) ** -beta).astype(x.dtype)


def _half(size: int) -> int:
    if size < 1 or size % 2 == 0:
        raise ValueError(f"response normalization needs an odd size, got {size}")
    return size // 2
