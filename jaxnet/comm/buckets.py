"""Buckets: which elements of which gradients travel as one message; leaves to messages and back.

A plan holds Python ints and is made outside tracing: offsets that were tracers could not size a slice. Two leaves in
buckets of at most 16 bytes, padded to a multiple of 4 elements; the first leaf is cut into equal pieces:

>>> leaves = [jnp.arange(1.0, 7.0), jnp.array([[7.0, 8.0], [9.0, 10.0]])]
>>> plan = plan_buckets(leaves, 16, multiple=4)
>>> [message.tolist() for message in pack(plan, leaves)]
[[1.0, 2.0, 3.0, 0.0], [4.0, 5.0, 6.0, 0.0], [7.0, 8.0, 9.0, 10.0]]
>>> [leaf.shape for leaf in unpack(plan, pack(plan, leaves))]
[(6,), (2, 2)]
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.comm.guards import require_count

# ---- Plans ----


Leaf = jax.ShapeDtypeStruct | jax.Array  # anything with `shape` and `dtype`


@dataclass(frozen=True)
class Piece:
    """Elements `[start, start + size)` of a flattened leaf, placed at `offset` of its bucket."""

    leaf: int
    start: int
    size: int
    offset: int


@dataclass(frozen=True)
class Bucket:
    """One message: pieces of one dtype side by side, then zeros up to `padded` elements."""

    dtype: str
    pieces: tuple[Piece, ...]
    padded: int

    @property
    def size(self) -> int:
        """Elements of gradient, without padding."""
        return sum(piece.size for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """Bytes of the message, with padding."""
        return self.padded * jnp.dtype(self.dtype).itemsize

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the message."""
        return jax.ShapeDtypeStruct((self.padded,), self.dtype)


@dataclass(frozen=True)
class BucketPlan:
    """Every element of every leaf is in exactly one bucket (law L5). Hashable and printable.

    Attributes:
        shapes: the shape of each leaf.
        dtypes: the dtype of each leaf.
        buckets: the messages, in the order in which they are issued.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    buckets: tuple[Bucket, ...]

    def shapes_in(self, bucket: Bucket) -> tuple[tuple[int, ...], ...]:
        """Shapes of the leaves of which a bucket holds something."""
        return tuple(self.shapes[piece.leaf] for piece in bucket.pieces)


def plan_buckets(
    leaves: Sequence[Leaf],
    bucket_bytes: int | None,
    *,
    first_bucket_bytes: int | None = None,
    split: bool = True,
    multiple: int = 1,
) -> BucketPlan:
    """Fill buckets with leaves in the order given; a bucket holds one dtype.

    With `split`, `bucket_bytes` is a hard cap: a leaf that is larger is cut into equal parts. Without, leaves
    stay whole and a bucket closes once it has reached the cap, so it may exceed it (PyTorch DDP's rule).

    Args:
        leaves: anything with `shape` and `dtype`, in the order in which backward produces them.
        bucket_bytes: the cap, in bytes before padding; None puts all leaves of a dtype into one bucket.
        first_bucket_bytes: the cap of the first bucket of each dtype, smaller so that communication
            starts early (PyTorch DDP: 1 MiB).
        split: whether a leaf may span buckets.
        multiple: each bucket is padded to a multiple of this many elements.

    >>> a, b = jax.ShapeDtypeStruct((6,), "float32"), jax.ShapeDtypeStruct((2, 2), "float32")
    >>> [bucket.padded for bucket in plan_buckets([a, b], 16, multiple=4).buckets]
    [4, 4, 4]
    """
    require_cap(bucket_bytes)
    require_cap(first_bucket_bytes, "first_bucket_bytes")
    return _filled_buckets(_shapes(leaves), _dtypes(leaves), bucket_bytes, first_bucket_bytes, split, multiple)


@functools.lru_cache(maxsize=64)  # one trace of a step asks for the same plan several times
def _filled_buckets(
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    bucket_bytes: int | None,
    first_bucket_bytes: int | None,
    split: bool,
    multiple: int,
) -> BucketPlan:
    """The plan of `plan_buckets`, from what can be hashed."""
    sizes = _sizes(shapes)
    groups: list[tuple[str, list[Piece]]] = []
    for dtype in dict.fromkeys(dtypes):
        same = [(index, sizes[index]) for index, name in enumerate(dtypes) if name == dtype]
        caps = _caps(bucket_bytes, first_bucket_bytes, jnp.dtype(dtype).itemsize)
        fill = _fill_split(same, caps) if split else _fill_whole(same, caps)
        groups.extend((dtype, pieces) for pieces in fill)
    # Buckets are issued when their last leaf is ready; with one dtype this is the order of filling.
    groups.sort(key=lambda group: max(piece.leaf for piece in group[1]))
    return _plan(shapes, dtypes, groups, multiple)


def plan_groups(leaves: Sequence[Leaf], groups: Sequence[Sequence[int]], *, multiple: int = 1) -> BucketPlan:
    """Whole leaves in the groups given, a bucket for each dtype of a group, in the order of the groups.

    Args:
        leaves: anything with `shape` and `dtype`.
        groups: places of leaves; each leaf in one group.
        multiple: each bucket is padded to a multiple of this many elements.

    >>> leaves = [jax.ShapeDtypeStruct((size,), "float32") for size in (6, 2, 4)]
    >>> [bucket.size for bucket in plan_groups(leaves, [[0], [1, 2]]).buckets]
    [6, 6]
    """
    if sorted(leaf for group in groups for leaf in group) != list(range(len(leaves))):
        raise ValueError(f"groups must hold each of the {len(leaves)} leaves once, got {groups}")
    shapes, dtypes = _shapes(leaves), _dtypes(leaves)
    sizes = _sizes(shapes)
    filled: list[tuple[str, list[Piece]]] = []
    for group in groups:
        for dtype in dict.fromkeys(dtypes[leaf] for leaf in group):
            same = [(leaf, sizes[leaf]) for leaf in group if dtypes[leaf] == dtype]
            filled.extend((dtype, pieces) for pieces in _fill_whole(same, itertools.repeat(None)))
    return _plan(shapes, dtypes, filled, multiple)


def _shapes(leaves: Sequence[Leaf]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(leaf.shape) for leaf in leaves)


def _dtypes(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    return tuple(jnp.dtype(leaf.dtype).name for leaf in leaves)


def _sizes(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _plan(
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    groups: Sequence[tuple[str, list[Piece]]],
    multiple: int,
) -> BucketPlan:
    return BucketPlan(shapes, dtypes, tuple(_bucket(dtype, pieces, multiple) for dtype, pieces in groups))


def _bucket(dtype: str, pieces: list[Piece], multiple: int) -> Bucket:
    size = sum(piece.size for piece in pieces)
    return Bucket(dtype, tuple(pieces), -(-size // multiple) * multiple)


def require_cap(most_bytes: int | None, name: str = "bucket_bytes") -> None:
    """Raise ValueError, which names it, unless the cap of a message is a whole number of bytes from 1 on, or None."""
    if most_bytes is None:
        return
    if not isinstance(most_bytes, int | np.integer):
        raise ValueError(f"{name} is {most_bytes!r}; wanted a whole number of bytes, such as 25 * MiB, or None")
    require_count(most_bytes, name)


def _caps(bucket_bytes: int | None, first_bucket_bytes: int | None, itemsize: int) -> Iterator[int | None]:
    """Cap of each successive bucket, in elements; at least one, or nothing would fit."""
    if first_bucket_bytes is not None:
        yield max(1, first_bucket_bytes // itemsize)
    while True:
        yield None if bucket_bytes is None else max(1, bucket_bytes // itemsize)


def _fill_whole(leaves: list[tuple[int, int]], caps: Iterator[int | None]) -> Iterator[list[Piece]]:
    """Buckets of whole leaves (place, size): each closes once it has reached its cap."""
    pieces: list[Piece] = []
    filled, cap = 0, next(caps)
    for leaf, size in leaves:
        if size == 0:
            continue
        pieces.append(Piece(leaf, 0, size, filled))
        filled += size
        if cap is not None and filled >= cap:
            yield pieces
            pieces, filled, cap = [], 0, next(caps)
    if pieces:
        yield pieces


def _fill_split(leaves: list[tuple[int, int]], caps: Iterator[int | None]) -> Iterator[list[Piece]]:
    """Buckets of leaves (place, size), cut where they are larger than the cap: none exceeds its cap."""
    pieces: list[Piece] = []
    filled, cap = 0, next(caps)
    for leaf, size in leaves:
        start = 0
        while start < size:
            # What remains of the leaf does not fit beside others: it begins a bucket of its own.
            if pieces and cap is not None and filled + (size - start) > cap:
                yield pieces
                pieces, filled, cap = [], 0, next(caps)
            taken = _equal_piece(size - start, cap)
            pieces.append(Piece(leaf, start, taken, filled))
            start, filled = start + taken, filled + taken
    if pieces:
        yield pieces


def _equal_piece(rest: int, cap: int | None) -> int:
    """Elements to cut from a leaf of which `rest` remain: pieces of equal size, not full ones and a small last one.

    >>> _equal_piece(10, cap=4)  # 4, 3, 3
    4
    """
    return rest if cap is None else -(-rest // -(-rest // cap))


# ---- Leaves to messages and back ----


def pack(plan: BucketPlan, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """The messages of `plan`: arrays of one dim, `bucket.padded` elements each.

    A leaf that fills its bucket alone is only reshaped: no copy.
    """
    flat = [leaf.reshape(-1) for leaf in leaves]
    return [_pack_bucket(bucket, flat) for bucket in plan.buckets]


def _pack_bucket(bucket: Bucket, flat: Sequence[jax.Array]) -> jax.Array:
    values = [_cut(flat[piece.leaf], piece) for piece in bucket.pieces]
    if len(values) > 1:
        # Without the barrier XLA:CPU fuses the reshapes into the concatenation: a loop that asks of each element
        # which leaf it is from.
        values = lax.optimization_barrier(values)
    if bucket.padded > bucket.size:
        values.append(jnp.zeros(bucket.padded - bucket.size, bucket.dtype))
    return values[0] if len(values) == 1 else jnp.concatenate(values)


def _cut(flat: jax.Array, piece: Piece) -> jax.Array:
    return flat if piece.size == flat.size else flat[piece.start : piece.start + piece.size]


def unpack(plan: BucketPlan, messages: Sequence[jax.Array]) -> list[jax.Array]:
    """The leaves again, in their shapes: `unpack(plan, pack(plan, leaves))` is `leaves` (law L5)."""
    pieces: list[list[tuple[int, jax.Array]]] = [[] for _ in plan.shapes]
    for bucket, message in zip(plan.buckets, messages, strict=True):
        for piece in bucket.pieces:
            value = message
            if piece.size != message.size:
                value = message[piece.offset : piece.offset + piece.size]
            pieces[piece.leaf].append((piece.start, value))
    return [_join(found, shape, dtype) for found, shape, dtype in zip(pieces, plan.shapes, plan.dtypes, strict=True)]


def _join(pieces: list[tuple[int, jax.Array]], shape: tuple[int, ...], dtype: str) -> jax.Array:
    if not pieces:  # a leaf of no elements
        return jnp.zeros(shape, dtype)
    ordered = [value for _, value in sorted(pieces, key=lambda piece: piece[0])]
    return (ordered[0] if len(ordered) == 1 else jnp.concatenate(ordered)).reshape(shape)
