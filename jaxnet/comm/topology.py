"""Devices in a line that talk by permutes: who is in it, and who sends to whom.

A line is what an algorithm such as a ring runs on: the devices along a mesh axis, or along one *factor* of an axis. On
8 devices, `factored("device", (4,), ...)` sees the axis as two factors, written as digits of a device's place:

    place along 'device'    0  1  2  3  4  5  6  7
    first factor, size 4    0  1  2  3  0  1  2  3      lines 0 1 2 3 and 4 5 6 7
    second factor, size 2   0  0  0  0  1  1  1  1      lines 0 4, 1 5, 2 6 and 3 7
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import require_varying, same_along
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Collective, Plan, PyTree, Reducer, axis_size

# ---- Permutations ----


Permutation = tuple[tuple[int, int], ...]
"""Who sends to whom at the same time: (sender, receiver), as places in a line of devices or of ranks."""


def rotation(size: int, step: int) -> Permutation:
    """Every place sends to the one `step` further on.

    >>> rotation(3, 1)
    ((0, 1), (1, 2), (2, 0))
    """
    return tuple((place, (place + step) % size) for place in range(size))


def inverse(permutation: Permutation) -> Permutation:
    """Senders and receivers exchanged."""
    return tuple((receiver, sender) for sender, receiver in permutation)


# ---- Factors of an axis ----


@dataclass(frozen=True)
class Factor:
    """One of the axes that `factored` makes of a mesh axis. Algorithms take it wherever they take an axis.

    Attributes:
        axis: the mesh axis.
        most: the sizes asked for, the innermost first; the last factor has what remains.
        index: which of them this is.
    """

    axis: str
    most: tuple[int, ...]
    index: int


Axis = str | Factor


def mesh_axis(axis: Axis) -> str:
    """The mesh axis itself, or that of which `axis` is a factor."""
    return axis if isinstance(axis, str) else axis.axis


class Digit(NamedTuple):
    """A place along `axis`, written with several digits, has this one: `place // stride % size`."""

    axis: str
    size: int
    stride: int


def digit_of(axis: Axis, axis_sizes: AxisSizes) -> Digit:
    """Where the devices of an axis, or of a factor of one, stand along the mesh axis.

    >>> digit_of(Factor("device", (2,), 1), {"device": 8})
    Digit(axis='device', size=4, stride=2)
    """
    if isinstance(axis, str):
        return Digit(axis, axis_size(axis, axis_sizes), 1)
    sizes = _sizes(axis_size(axis.axis, axis_sizes), axis.most)
    return Digit(axis.axis, sizes[axis.index], math.prod(sizes[: axis.index]))


def _sizes(size: int, most: Sequence[int]) -> list[int]:
    """Sizes of all factors: each the largest divisor of what remains that is at most the one asked for."""
    sizes = []
    for limit in most:
        divisor = max(n for n in range(1, min(limit, size) + 1) if size % n == 0)
        sizes.append(divisor)
        size //= divisor
    return [*sizes, size]


def groups_of(axis: Axis, axis_sizes: AxisSizes) -> tuple[tuple[int, ...], ...]:
    """Places along the mesh axis that take part together; empty: all of them.

    >>> groups_of(Factor("device", (2,), 1), {"device": 4})
    ((0, 2), (1, 3))
    """
    if isinstance(axis, str):
        return ()
    name, size, stride = digit_of(axis, axis_sizes)
    firsts = (place for place in range(axis_sizes[name]) if place // stride % size == 0)
    return tuple(tuple(first + digit * stride for digit in range(size)) for first in firsts)


def same_along_axis(value: jax.Array, axis: Axis) -> jax.Array:
    """`value`, typed as the same along `axis`. JAX has no such type for a factor; `factored` types the whole axis."""
    return same_along(value, (axis,)) if isinstance(axis, str) else value


@expressed
def factored(axis: str, most: Sequence[int], build: Callable[..., Reducer]) -> Reducer:
    """Sum over `axis` with a reducer built from its factors, each of which stands for an axis.

    Neighbours along `axis` differ in the first factor. With `most=(4,)` on 8 devices there are two: groups of 4
    neighbours, and across these groups 2. A factor has the largest size that divides and is at most the one
    asked for, so one expression serves axes of any size: groups of at most 4 are groups of 3 on 6 devices.

    The reducer prints `build` by its name, so its text evaluates where that name is known; that of a lambda does not.

    Args:
        axis: a mesh axis.
        most: the sizes of the first factors; one more has what remains.
        build: takes the factors, gives a bucket reducer that sums over all of them. `all_reduce` takes mesh axes only.

    Raises:
        ValueError: from `plan` and `reduce`, if what was built leaves groups of the axis apart.

    >>> from jaxnet.comm import ring, scattered
    >>> blueconnect = factored("device", (4,), lambda near, far: scattered(near, ring(far)))
    >>> spec = jax.ShapeDtypeStruct((80,), "float32")
    >>> [(c.kind, c.size, c.elements) for c in blueconnect.plan(spec, {"device": 8}).collectives]
    [('reduce-scatter', 4, 80), ('collective-permute', 2, 10), ('collective-permute', 2, 10), ('all-gather', 4, 80)]
    """
    if any(size < 1 for size in most):
        raise ValueError(f"the sizes of the factors of {axis!r} must be at least 1, got {tuple(most)}")
    inner = build(*(Factor(axis, tuple(most), index) for index in range(len(most) + 1)))

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        require_varying(message, (axis,), "the message")
        plan_fn(message, BOUND_AXES)  # refuses a reducer that leaves groups apart
        total, state = inner.reduce(message, state)
        return same_along(total, (axis,)), state

    def plan_fn(spec: jax.ShapeDtypeStruct | jax.Array, axis_sizes: AxisSizes) -> Plan:
        plan = inner.plan(spec, axis_sizes)
        _require_joined(axis, plan.collectives, axis_sizes)
        return plan

    return Reducer(inner.init, reduce_fn, plan_fn)


def _require_joined(axis: str, collectives: Sequence[Collective], axis_sizes: AxisSizes) -> None:
    """Raise ValueError unless data can get from every place along `axis` to every other."""
    joined = {place: {place} for place in range(axis_sizes[axis])}
    for collective in collectives:
        if axis in collective.axes:
            for members in _members(collective, axis, axis_sizes):
                together = set[int]().union(*(joined[place] for place in members))
                joined.update(dict.fromkeys(together, together))
    if len(joined[0]) < axis_sizes[axis]:
        raise ValueError(
            f"the reducer over the factors of {axis!r} sums over some of them only: place 0 of {axis_sizes[axis]} "
            f"exchanges nothing with {sorted(set(joined) - joined[0])}. Use every factor that build receives."
        )


def require_apart(axis: Axis, collectives: Sequence[Collective], axis_sizes: AxisSizes) -> None:
    """Raise ValueError if `collectives`, those inside a bracket over `axis`, sum along `axis` once more."""
    name, size, stride = digit_of(axis, axis_sizes)
    for collective in collectives if size > 1 else ():
        members = _members(collective, name, axis_sizes) if name in collective.axes else []
        if any(len({place // stride % size for place in places}) > 1 for places in members):
            raise ValueError(
                f"a sum over {axis!r}: its inner reducer, by {collective.kind} over {collective.axes}, sums along the "
                "same axis again. Name each axis once, as in scattered('device', all_reduce('host'))."
            )


def _members(collective: Collective, axis: str, axis_sizes: AxisSizes) -> list[list[int]]:
    """Places along `axis` between which the collective moves data."""
    sizes = [axis_sizes[name] for name in collective.axes]
    along = np.unravel_index(np.arange(math.prod(sizes)), sizes)[collective.axes.index(axis)]
    members = collective.pairs or collective.groups or [range(math.prod(sizes))]
    return [along[list(places)].tolist() for places in members]


# ---- Lines ----


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
    """The devices along an axis, in groups; each group is a line that counts its places from 0.

    Attributes:
        digit: where the line lies along its mesh axis.
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
        """Devices in a line."""
        return self.digit.size

    def place(self) -> jax.Array:
        """This device's place in its line, an int32 [] that differs by device."""
        return lax.axis_index(self.digit.axis) // self.digit.stride % self.digit.size

    def send(self, value: jax.Array, permutation: Permutation) -> jax.Array:
        """What this device receives when each sender sends its `value`; zeros where nothing arrives."""
        pairs = self._pairs(permutation)
        cuts = _cuts(value.size, value.dtype.itemsize, self.piece_bytes)
        pieces = [lax.ppermute(value[start:stop], self.axes, pairs) for start, stop in cuts]
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)

    def plan(self, elements: int, dtype: str, permutation: Permutation) -> tuple[Collective, ...]:
        """What `send` puts on the wire for a value of this many elements."""
        pairs, name = self._pairs(permutation), jnp.dtype(dtype).name
        cuts = _cuts(elements, jnp.dtype(dtype).itemsize, self.piece_bytes)
        return tuple(
            Collective("collective-permute", self.axes, self.size, stop - start, name, pairs=pairs)
            for start, stop in cuts
        )

    def _pairs(self, permutation: Permutation) -> Permutation:
        """The permutation in every group, as places along `axes`."""
        return tuple((group[sender], group[receiver]) for group in self.groups for sender, receiver in permutation)


def line_of(axis: Axis, axis_sizes: AxisSizes, piece_bytes: int | None = None) -> Line:
    """The line along `axis`; inside `among_roots`, of roots alone.

    >>> line_of("device", {"host": 2, "device": 2}).groups
    ((0, 1),)
    >>> with among_roots("device"):
    ...     line_of("host", {"host": 2, "device": 2}).groups
    ((0, 2),)

    The second counts places along both axes: device 0 of host 0 is place 0, device 0 of host 1 is place 2.
    """
    # 1. The axes to count along: the line's own, and those of which only roots take part.
    own = digit_of(axis, axis_sizes)
    roots = [digit_of(root, axis_sizes) for root in _roots_of.get()] if own.size > 1 else []
    roots = [root for root in roots if root.size > 1]
    axes = _in_mesh_order({own.axis, *(root.axis for root in roots)}, axis_sizes)
    # 2. The first place of each line: digit 0 along the line, and digit 0 wherever only roots take part.
    sizes = [axis_sizes[name] for name in axes]
    coordinates = dict(zip(axes, np.indices(sizes), strict=True))
    first = np.ones(sizes, bool)
    for name, size, stride in (own, *roots):
        first &= coordinates[name] // stride % size == 0
    # 3. The others, each one step further on.
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
