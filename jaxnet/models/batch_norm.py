"""BatchNorm of the last axis, as one product and one sum an element."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax


class BatchNorm(nn.Module):
    """`flax.linen.BatchNorm` with PyTorch's constants, the same variables and float32 statistics.

    `y = a x + b` with `a = scale / sqrt(variance + epsilon)` and `b = bias - mean a`, rather than
    `(x - mean) a + bias`: the gradient then keeps `x` alone, and not `x - mean` besides. On CPUs a training step of
    ResNet-50 maps a quarter less of scratch memory.

    Attributes:
        axes: mesh axes that share the statistics of a batch; none: each device normalizes by its own.
        dtype: of the result.
        train: normalize by the batch rather than by the running average.
        zero: start the scale at 0, so that a residual branch starts as the identity (Goyal et al., 2017).
        epsilon: added to the variance.
        momentum: the share of the old running average that a step keeps: 1 - PyTorch's momentum.
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
