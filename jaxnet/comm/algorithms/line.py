"""Devices in a row that talk by permutes: who they are, and what one of them sends to another."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.comm.algorithms.factor import Axis, Digit, digit_of
from jaxnet.comm.algorithms.hops import Hops
from jaxnet.comm.collective import Collective
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes

# Axes of which only the root's value counts while an inner reducer is traced or planned. It is a context and not
# an argument because an inner reducer is complete before it is put into an outer one.
_roots_of: ContextVar[tuple[Axis, ...]] = ContextVar("roots_of", default=())


@contextmanager
def among_roots(axis: Axis) -> Iterator[None]:
    """Inside, lines hold only devices that are the root (place 0) of their line along `axis`; the others send nothing.

    Without it every device would send a value across hosts of which only the root's is used.
    """
    token = _roots_of.set((*_roots_of.get(), axis))
    try:
        yield
    finally:
        _roots_of.reset(token)


@dataclass(frozen=True)
class Line:
    """The devices along an axis, in groups; each group is a row that counts its places from 0.

    Attributes:
        digit: where the row lies along its mesh axis.
        axes: the mesh axes along which `groups` counts.
        groups: places along `axes`, row by row of the mesh.
        piece_bytes: a permute sends at most so many bytes; None: any number.
    """

    digit: Digit
    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    piece_bytes: int | None

    @property
    def size(self) -> int:
        """Devices in a row."""
        return self.digit.size

    def place(self) -> jax.Array:
        """This device's place in its row, an int32 [] that differs by device."""
        return lax.axis_index(self.digit.axis) // self.digit.stride % self.digit.size

    def send(self, value: jax.Array, hops: Hops) -> jax.Array:
        """What the sender of this device's hop has as `value`; zeros on a device to which none leads."""
        pairs = self._pairs(hops)
        cuts = _cuts(value.size, value.dtype.itemsize, self.piece_bytes)
        pieces = [lax.ppermute(value[start:stop], self.axes, pairs) for start, stop in cuts]
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)

    def plan(self, elements: int, dtype: str, hops: Hops) -> tuple[Collective, ...]:
        """What `send` puts on the wire for a value of this many elements."""
        pairs, name = self._pairs(hops), jnp.dtype(dtype).name
        cuts = _cuts(elements, jnp.dtype(dtype).itemsize, self.piece_bytes)
        return tuple(
            Collective("collective-permute", self.axes, self.size, stop - start, name, pairs=pairs)
            for start, stop in cuts
        )

    def _pairs(self, hops: Hops) -> Hops:
        return tuple((group[sender], group[receiver]) for group in self.groups for sender, receiver in hops)


def line_of(axis: Axis, axis_sizes: AxisSizes, piece_bytes: int | None = None) -> Line:
    """The line along `axis`; inside `among_roots`, of roots alone.

    >>> line_of("device", {"host": 2, "device": 2}).groups
    ((0, 1),)
    >>> with among_roots("device"):
    ...     line_of("host", {"host": 2, "device": 2}).groups
    ((0, 2),)
    """
    if piece_bytes is not None and piece_bytes < 1:
        raise ValueError(f"piece_bytes must be at least 1, got {piece_bytes}")
    own = digit_of(axis, axis_sizes)
    roots = [digit_of(root, axis_sizes) for root in _roots_of.get()] if own.size > 1 else []
    roots = [root for root in roots if root.size > 1]
    axes = _in_mesh_order({own.axis, *(root.axis for root in roots)}, axis_sizes)
    sizes = [axis_sizes[name] for name in axes]
    coordinates = dict(zip(axes, np.indices(sizes), strict=True))
    first = np.ones(sizes, bool)
    for name, size, stride in (own, *roots):
        first &= coordinates[name] // stride % size == 0
    step = own.stride * math.prod(sizes[axes.index(own.axis) + 1 :])
    groups = tuple(tuple(int(start) + n * step for n in range(own.size)) for start in np.flatnonzero(first))
    return Line(own, axes, groups, piece_bytes)


def _in_mesh_order(axes: set[str], axis_sizes: AxisSizes) -> tuple[str, ...]:
    """JAX counts places along several axes in the order of the mesh, whatever order they are named in."""
    if len(axes) == 1:
        return tuple(axes)
    order = jax.sharding.get_abstract_mesh().axis_names if axis_sizes is BOUND_AXES else tuple(axis_sizes)
    return tuple(axis for axis in order if axis in axes)


def _cuts(elements: int, itemsize: int, piece_bytes: int | None) -> Sequence[tuple[int, int]]:
    """Start and stop of the fewest pieces of nearly equal length that hold at most `piece_bytes` (or one element)."""
    longest = elements if piece_bytes is None else max(1, piece_bytes // itemsize)
    count = -(-elements // longest) if elements else 1
    ends = [elements * index // count for index in range(count + 1)]
    return list(itertools.pairwise(ends))
