"""The few largest elements, with their places."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.codecs.codec import Codec


def top_k(fraction: float) -> Codec:
    """The `fraction` of largest magnitude, at least one element, whole; the others as 0 (Aji and Heafield, 2017).

    `2 fraction` of the bytes of float32: a place costs as much as a value, so half is the most that makes
    sense. Needs feedback. The squared length of the error is at most `1 - fraction` of the message's. NaN counts
    as the largest, then infinity: if there is one, one travels.

    Args:
        fraction: of the elements of each message, above 0 and at most 0.5.
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(f"fraction must be above 0 and at most 0.5, got {fraction}")

    def count(size: int) -> int:
        return math.ceil(fraction * size)

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        _, places = lax.top_k(jnp.abs(message), count(message.size))
        return message[places], places

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        values, places = arrays
        return jnp.zeros(size, jnp.float32).at[places].set(values, unique_indices=True)

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        shape = (count(message.shape[0]),)
        return jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)

    return Codec(encode, decode, spec)
