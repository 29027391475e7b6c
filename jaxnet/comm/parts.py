"""A leaf cut into equal parts, one a device: a row each, zeros after the end."""

import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp


def part_size(size: int, devices: int) -> int:
    """Elements of one device's part of a leaf of `size` elements."""
    return -(-size // devices)


def part_shapes(leaves: Iterable[jax.ShapeDtypeStruct | jax.Array], devices: int) -> list[jax.ShapeDtypeStruct]:
    """Shape and dtype of one device's part of each leaf.

    >>> [part.shape for part in part_shapes([jax.ShapeDtypeStruct((3, 3), "float32")], 4)]
    [(3,)]
    """
    return [jax.ShapeDtypeStruct((part_size(math.prod(leaf.shape), devices),), leaf.dtype) for leaf in leaves]


def rows_of(leaf: jax.Array, devices: int) -> jax.Array:
    """The leaf as [devices, part]; only a reshape if it divides.

    >>> rows_of(jnp.arange(3), 2).tolist()
    [[0, 1], [2, 0]]
    """
    flat = leaf.reshape(-1)
    part = part_size(flat.size, devices)
    return jnp.pad(flat, (0, devices * part - flat.size)).reshape(devices, part)


def whole_of(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The leaf of this shape whose parts follow each other in `rows`.

    >>> whole_of(jnp.array([[0, 1], [2, 0]]), (3,)).tolist()
    [0, 1, 2]
    """
    return rows.reshape(-1)[: math.prod(shape)].reshape(shape)


def filled(size: int, devices: int, start: int, width: int) -> int:
    """How many of a leaf's `size` elements stand in columns `[start, start + width)` of its rows.

    >>> filled(3, 2, start=0, width=1), filled(3, 2, start=1, width=1)
    (2, 1)
    """
    if size == 0:
        return 0
    rows, rest = divmod(size, part_size(size, devices))
    return rows * width + min(max(rest - start, 0), width)
