"""A message as blocks of equal length, so that each can have a scale of its own."""

import jax
import jax.numpy as jnp


def in_blocks(message: jax.Array, block: int) -> jax.Array:
    """[blocks, block]; the last is filled up with zeros (False for bool).

    >>> in_blocks(jnp.arange(1, 6), 3).tolist()
    [[1, 2, 3], [4, 5, 0]]
    """
    return jnp.pad(message, (0, -message.size % block)).reshape(-1, block)


def block_count(size: int, block: int) -> int:
    """How many blocks `in_blocks` makes."""
    return -(-size // block)


def require_block(block: int) -> None:
    """Raise ValueError unless a block holds something."""
    if block < 1:
        raise ValueError(f"block must be at least 1 element, got {block}")
