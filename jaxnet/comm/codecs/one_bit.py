"""One bit an element: its sign."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxnet.comm.codecs.bits import pack_bits, packed_size, unpack_bits
from jaxnet.comm.codecs.blocks import block_count, in_blocks, require_block
from jaxnet.comm.codecs.codec import Codec


def one_bit(block: int = 1024) -> Codec:
    """Signs, with the mean of the positive and of the negative elements of each block (CNTK; Seide et al., 2014).

    `1/32 + 2/block` of the bytes of float32: 1/30 by default. CNTK's blocks are the columns of a weight matrix.
    The two means keep the sum of a block, and no two other values would be nearer: the error is orthogonal to
    what is sent, so never longer than the message. Needs feedback. A NaN or an infinity makes all elements of
    its sign in its block the same (NaN counts as negative).
    """
    require_block(block)

    def encode(message: jax.Array) -> tuple[jax.Array, ...]:
        positive = message >= 0
        rows = in_blocks(message, block)
        means = [_mean(rows, in_blocks(chosen, block)) for chosen in (positive, ~positive)]
        return pack_bits(positive.astype(jnp.uint8), bits=1), *means

    def decode(arrays: Sequence[jax.Array], size: int) -> jax.Array:
        packed, above, below = arrays
        positive = in_blocks(unpack_bits(packed, 1, size), block) == 1
        return jnp.where(positive, above[:, None], below[:, None]).reshape(-1)[:size]

    def spec(message: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
        [size] = message.shape
        means = jax.ShapeDtypeStruct((block_count(size, block),), jnp.float32)
        return jax.ShapeDtypeStruct((packed_size(size, 1),), jnp.uint8), means, means

    return Codec(encode, decode, spec)


def _mean(rows: jax.Array, chosen: jax.Array) -> jax.Array:
    """Mean of the chosen elements of each row, 0 if there are none."""
    length = rows.shape[1]
    # Divided first: the sum of large elements must not overflow where their mean does not.
    share = (jnp.where(chosen, rows, 0) / length).sum(axis=1)
    return share * (length / jnp.maximum(chosen.sum(axis=1, dtype=jnp.float32), 1))
