"""Layers that the models share."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError

Dtype = Literal["float32", "bfloat16"]


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


class ExampleDropout(nn.Module):
    """Dropout whose randomness belongs to the example, not to the device that computes it.

    The same example at the same step drops the same units on any number of devices or processes.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """Drop units of `x`, [batch, ...], by the example's own key; `keys` is [batch]."""
        if not train or self.rate == 0:
            return x
        if keys is None:
            raise ValueError("dropout in training needs one random key an example: pass keys")
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.rate, x.shape[1:]))(keys)
        return jnp.where(keep, x / (1 - self.rate), jnp.zeros_like(x))


def batch_norm(axes: tuple[str, ...], dtype: str, *, train: bool, name: str, zero: bool = False) -> nn.BatchNorm:
    """BatchNorm with a running average of 0.9 (PyTorch's momentum 0.1) and float32 statistics.

    Args:
        axes: mesh axes that share the statistics of a batch; none: each device normalizes by its own.
        dtype: of the result.
        train: normalize by the batch rather than by the running average.
        name: of the layer.
        zero: start the scale at 0, so that a residual branch starts as the identity (Goyal et al., 2017).
    """
    return nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        dtype=dtype,
        axis_name=axes or None,  # type: ignore[arg-type]  # several axes work too
        scale_init=nn.initializers.zeros if zero else nn.initializers.ones,
        name=name,
    )
