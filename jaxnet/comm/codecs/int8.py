"""Eight bits an element, with a scale for each block."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxnet.comm.codecs.blocks import block_count, in_blocks, require_block
from jaxnet.comm.codecs.codec import Codec

_LEVELS = 127
_SMALLEST = float(jnp.finfo(jnp.float32).tiny)


def int8(block: int = 256) -> Codec:
    """Round to 255 levels between minus and plus the largest magnitude of the block (EQuARX, 2025).

    `1/4 + 1/block` of the bytes of float32. The error of an element is at most 1/254 of its block's largest
    magnitude; the largest itself is exact. A block that is all below 1.5e-36 is sent as 0. A block with a NaN
    or an infinity has no finite element left.
    """
    require_block(block)

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        rows = in_blocks(message, block)
        peaks = jnp.abs(rows).max(axis=1)
        # XLA multiplies by the reciprocal instead, so that must be a normal number: 127 / 3e38 is, 1 / 3e38 is not.
        level = (peaks / _LEVELS)[:, None]
        levels = jnp.round(jnp.where(level >= _SMALLEST, rows / level, 0)).astype(jnp.int8)
        return levels.reshape(-1)[: message.size], peaks

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        levels, peaks = arrays
        # In this order the largest magnitude comes out exact, and cannot overflow.
        rows = in_blocks(levels, block).astype(jnp.float32) / _LEVELS * peaks[:, None]
        # An infinite peak times a level other than 0 is infinite, times level 0 is NaN: never finite.
        return rows.reshape(-1)[:size]

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        [size] = message.shape
        return (
            jax.ShapeDtypeStruct((size,), jnp.int8),
            jax.ShapeDtypeStruct((block_count(size, block),), jnp.float32),
        )

    return Codec(encode, decode, spec)
