"""Narrower floats: half the bytes, element by element."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.codecs.codec import Codec


def _float16_arrays(message: jax.Array) -> tuple[jax.Array, ...]:
    return (message.astype(jnp.float16),)


def _float16_message(arrays: Sequence[jax.Array], size: int) -> jax.Array:
    del size
    return arrays[0].astype(jnp.float32)


def _bfloat16_arrays(message: jax.Array) -> tuple[jax.Array, ...]:
    # As integers, because XLA:CPU widens bfloat16 in collectives to float32.
    return (lax.bitcast_convert_type(message.astype(jnp.bfloat16), jnp.uint16),)


def _bfloat16_message(arrays: Sequence[jax.Array], size: int) -> jax.Array:
    del size
    return lax.bitcast_convert_type(arrays[0], jnp.bfloat16).astype(jnp.float32)


float16 = Codec(
    _float16_arrays,
    _float16_message,
    lambda message: (jax.ShapeDtypeStruct(message.shape, jnp.float16),),
)
"""IEEE half precision, 1/2 of the bytes: 11 bits of mantissa (relative error at most 2^-11 between 6e-5 and 65504).

Beyond 65504 it is infinite, and shows as such. NaN and infinities stay what they are.
"""

bfloat16 = Codec(
    _bfloat16_arrays,
    _bfloat16_message,
    lambda message: (jax.ShapeDtypeStruct(message.shape, jnp.uint16),),
)
"""The upper half of a float32, 1/2 of the bytes: 8 bits of mantissa (relative error at most 2^-8), all its exponents.

Travels as uint16, 2 bytes on every backend. NaN and infinities stay what they are.
"""
