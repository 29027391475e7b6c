"""Leaves to messages and back, as a bucket plan says. `unpack(pack(leaves)) == leaves` (law L5)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.buckets.plan import Bucket, BucketPlan, Piece


def pack(plan: BucketPlan, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """The messages of `plan`: arrays of one dim, `bucket.padded` elements each.

    A leaf that fills its bucket alone is only reshaped: no copy.
    """
    flat = [leaf.reshape(-1) for leaf in leaves]
    return [_pack_bucket(bucket, flat) for bucket in plan.buckets]


def _pack_bucket(bucket: Bucket, flat: Sequence[jax.Array]) -> jax.Array:
    parts = [_cut(flat[piece.leaf], piece) for piece in bucket.pieces]
    if len(parts) > 1:
        # Else XLA:CPU fuses reshapes into the concatenation, a loop that finds out for each element whose it is.
        parts = lax.optimization_barrier(parts)
    if bucket.padded > bucket.size:
        parts.append(jnp.zeros(bucket.padded - bucket.size, bucket.dtype))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _cut(flat: jax.Array, piece: Piece) -> jax.Array:
    return flat if piece.size == flat.size else flat[piece.start : piece.start + piece.size]


def unpack(plan: BucketPlan, messages: Sequence[jax.Array]) -> list[jax.Array]:
    """The leaves again, in their shapes."""
    parts: list[list[tuple[int, jax.Array]]] = [[] for _ in plan.shapes]
    for bucket, message in zip(plan.buckets, messages, strict=True):
        for piece in bucket.pieces:
            value = message
            if piece.size != message.size:
                value = message[piece.offset : piece.offset + piece.size]
            parts[piece.leaf].append((piece.start, value))
    return [_join(leaf, shape, dtype) for leaf, shape, dtype in zip(parts, plan.shapes, plan.dtypes, strict=True)]


def _join(parts: list[tuple[int, jax.Array]], shape: tuple[int, ...], dtype: str) -> jax.Array:
    if not parts:
        return jnp.zeros(shape, dtype)
    ordered = [value for _, value in sorted(parts, key=lambda part: part[0])]
    return (ordered[0] if len(ordered) == 1 else jnp.concatenate(ordered)).reshape(shape)
