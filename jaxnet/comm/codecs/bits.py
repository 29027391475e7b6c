"""Small codes side by side in bytes.

The first `1/per_byte` of the codes become the lowest bits of all bytes, the next the bits above, and so on, not
neighbours in one byte: so both ways are shifts of whole contiguous runs, which vectorize.
"""

import functools

import jax
import jax.numpy as jnp


def packed_size(size: int, bits: int) -> int:
    """Bytes that hold `size` codes of `bits` bits."""
    return -(-size * bits // 8)


def pack_bits(codes: jax.Array, bits: int) -> jax.Array:
    """uint8 codes below `2**bits`, 8 / bits of them in each byte.

    >>> pack_bits(jnp.array([1, 0, 3, 2, 1], jnp.uint8), 2).tolist()
    [29, 8]
    """
    per_byte, width = 8 // bits, packed_size(codes.size, bits)
    planes = jnp.pad(codes, (0, per_byte * width - codes.size)).reshape(per_byte, width)
    return functools.reduce(jnp.bitwise_or, [planes[place] << (bits * place) for place in range(per_byte)])


def unpack_bits(packed: jax.Array, bits: int, size: int) -> jax.Array:
    """The first `size` codes again.

    >>> unpack_bits(jnp.array([29, 8], jnp.uint8), 2, 5).tolist()
    [1, 0, 3, 2, 1]
    """
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)[:, None]
    return ((packed[None] >> shifts) & (2**bits - 1)).reshape(-1)[:size]
