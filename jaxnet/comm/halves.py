"""A sum in two halves, a reduce-scatter and an all-gather, with room for another sum between them.

Reducers over several levels are brackets, one inside the other:

    scattered("device", ring("host"))

reduce-scatters a message over the devices of a host, sums each shard around a ring of hosts, and all-gathers over
the devices. This module has the bracket, XLA's own collectives as its halves, and XLA's all-reduce. Rings, halving and
doubling are in `rings`, trees in `trees`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.buckets import require_cap
from jaxnet.comm.expression import default_text, expressed
from jaxnet.comm.guards import require_array, require_axes, require_divides, require_varying, same_along
from jaxnet.comm.reducer import (
    BOUND_AXES,
    AxisSizes,
    Collective,
    CollectiveKind,
    Plan,
    PyTree,
    Reducer,
    axes_size,
    require_reducer,
    stateless,
)
from jaxnet.comm.topology import (
    Axis,
    Factor,
    Line,
    Permutation,
    digit_of,
    groups_of,
    inverse,
    line_of,
    mesh_axis,
    require_apart,
    same_along_axis,
)
from jaxnet.comm.traffic import in_rows, tile_elements

_Named = TypeVar("_Named", bound=Axis)
Spec = jax.ShapeDtypeStruct | jax.Array  # of a message: anything with `shape` and `dtype`

# ---- All-reduce ----


class AllReduce(Protocol):
    """What makes a bucket reducer over mesh axes: `all_reduce`, or another transport's."""

    def __call__(self, *axes: str) -> Reducer: ...


@expressed
def all_reduce(*axes: str) -> Reducer:
    """Sum over `axes` with the backend's own all-reduce (NCCL; Gloo's ring; the TPU's torus).

    Law: `all_reduce("host", "device") == lax.psum(x, ("host", "device"))`. Bytes sent by each of the n
    devices: `2 (n-1)/n S`; on a ring `T = 2 (n-1) alpha + 2 (n-1)/n S beta`.
    """
    require_axes(axes, "all_reduce")

    def reduce(message: jax.Array) -> jax.Array:
        require_varying(message, axes, "the message")
        if axes_size(axes, BOUND_AXES) == 1:
            return same_along(message, axes)  # a collective of one device would be a copy (law L4)
        return lax.psum(message, axes)

    def plan(spec: Spec, axis_sizes: AxisSizes) -> Plan:
        require_array(spec, "the message")
        size = axes_size(axes, axis_sizes)
        whole = Collective("all-reduce", axes, size, math.prod(spec.shape), jnp.dtype(spec.dtype).name)
        return Plan((whole,) if size > 1 else ())

    return stateless(reduce, plan)


IDENTITY = all_reduce()
"""The inner reducer of a bracket with nothing inside."""


# ---- Two halves, and the bracket that they make ----


class HalvesPlan(NamedTuple):
    """What two halves will do to a message of a given shape on a mesh of given sizes.

    Attributes:
        scatter: the collectives of the first half, in the order in which they are issued.
        gather: those of the second half.
        shards: how many shards the first half makes of a message; 1 if it leaves the whole sum on a root.
        multiple: the message must have a multiple of this many elements.
    """

    scatter: tuple[Collective, ...]
    gather: tuple[Collective, ...]
    shards: int
    multiple: int

    def shard(self, spec: Spec) -> jax.ShapeDtypeStruct:
        """Shape and dtype of what the first half leaves on a device."""
        return jax.ShapeDtypeStruct((spec.shape[0] // self.shards,), spec.dtype)


class Halves(NamedTuple):
    """A reduce-scatter and the all-gather that undoes it, over one axis or several.

    With 4 devices that hold `[0, 1, 2, 3]`, `[10, 11, 12, 13]`, `[20, 21, 22, 23]` and `[30, 31, 32, 33]`, `scatter`
    leaves one shard of the sum on each, and `gather` gives all shards to all:

    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices()[:4], ("device",))
    >>> halves = xla_halves("device")
    >>> x = 10 * jnp.arange(4)[:, None] + jnp.arange(4)[None]
    >>> scatter = lambda row: halves.scatter(row[0])
    >>> jax.shard_map(scatter, mesh=mesh, in_specs=P("device"), out_specs=P("device"))(x).tolist()
    [60, 64, 68, 72]
    >>> both = lambda row: halves.gather(halves.scatter(row[0]))
    >>> jax.shard_map(both, mesh=mesh, in_specs=P("device"), out_specs=P())(x).tolist()
    [60, 64, 68, 72]

    The first result has one element on each device, the second all four on every device.

    Attributes:
        axes: what it spans; shard number p lies on place p along `axes`, of which the first is the slowest.
        scatter: `scatter(message) -> shard` of the sum, an array of one dim.
        gather: `gather(shard) -> message`: every device gets the whole message, and the same bits.
        plan: `plan(spec of the message, axis_sizes) -> HalvesPlan`; ValueError if the message does not divide.
        rooted: the first half leaves the whole sum on a root, and shards on no device.
        expression: Python that makes it; `expressed` fills it in.
    """

    axes: tuple[Axis, ...]
    scatter: Callable[[jax.Array], jax.Array]
    gather: Callable[[jax.Array], jax.Array]
    plan: Callable[[Spec, AxisSizes], HalvesPlan]
    rooted: bool = False
    expression: str = ""

    def __repr__(self) -> str:
        return self.expression or default_text("Halves", self.scatter)


@expressed
def bracket(halves: Halves, inner: Reducer) -> Reducer:
    """The first half, `inner` on the shard of each device, the second half.

    Law: it sums over `halves.axes` and what `inner` sums over. `inner` must not sum along `halves.axes` again: devices
    there hold different shards by then. That is a ValueError from `plan` and `reduce`.
    """
    names = [mesh_axis(axis) for axis in halves.axes]
    require_reducer(inner, f"a sum over {', '.join(map(repr, names))}")

    def init_fn(spec: Spec, axis_sizes: AxisSizes) -> PyTree:
        return inner.init(halves.plan(spec, axis_sizes).shard(spec), axis_sizes)

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        require_varying(message, names, "the message")
        plan_fn(message, BOUND_AXES)  # refuses a message that does not divide, and an axis that is summed twice
        shard, state = inner.reduce(halves.scatter(message), state)
        return halves.gather(shard), state

    def plan_fn(spec: Spec, axis_sizes: AxisSizes) -> Plan:
        own = halves.plan(spec, axis_sizes)
        within = inner.plan(own.shard(spec), axis_sizes)
        for axis in halves.axes:
            require_apart(axis, within.collectives, axis_sizes)
        multiple = math.lcm(own.multiple, own.shards * within.multiple)
        return Plan((*own.scatter, *within.collectives, *own.gather), multiple)

    return Reducer(init_fn, reduce_fn, plan_fn)


# ---- XLA's own halves ----


@expressed
def xla_halves(*axes: Axis) -> Halves:
    """The backend's own reduce-scatter and all-gather, over mesh axes as one, or over one factor of an axis.

    Each of n devices sends `(n-1)/n S` in each half.
    """
    if len(axes) > 1 and any(isinstance(axis, Factor) for axis in axes):
        raise ValueError(f"xla_halves takes mesh axes, or one factor of an axis by itself, got {axes}")

    def scatter(message: jax.Array) -> jax.Array:
        groups = _groups(axes, BOUND_AXES)
        for names in _at_once(_longer_than_one(axes)):
            message = lax.psum_scatter(in_rows(message), names, axis_index_groups=groups, tiled=True).reshape(-1)
        return message  # as it is along axes of one device, where a collective would be a copy (law L4)

    def gather(shard: jax.Array) -> jax.Array:
        groups = _groups(axes, BOUND_AXES)
        for names in reversed(_at_once(_longer_than_one(axes))):
            if groups:
                # JAX has no type for what is the same along a factor; `factored` says it of the whole axis.
                return lax.all_gather(in_rows(shard), names, axis_index_groups=groups, tiled=True).reshape(-1)
            # 'invarying' tells JAX what the algorithm guarantees: all devices now hold the same bits.
            shard = lax.all_gather(in_rows(shard), names, tiled=True, to="invarying").reshape(-1)
        for axis in axes:
            shard = same_along_axis(shard, axis)
        return shard

    def plan(spec: Spec, axis_sizes: AxisSizes) -> HalvesPlan:
        size = math.prod(digit_of(axis, axis_sizes).size for axis in axes)
        require_divides(spec, _call("scattered", axes), size, "the size of the axis")

        def half(kind: CollectiveKind) -> Iterator[Collective]:
            """Stage by stage, each with the shard that the one before it has left."""
            elements, dtype = spec.shape[0], jnp.dtype(spec.dtype).name
            longer = [axis for axis in axes if digit_of(axis, axis_sizes).size > 1]
            for stage in _at_once(longer or axes):
                members = math.prod(digit_of(axis, axis_sizes).size for axis in stage)
                names = tuple(mesh_axis(axis) for axis in stage)
                if members > 1:
                    yield Collective(kind, names, members, elements, dtype, _groups(axes, axis_sizes) or ())
                elements //= members

        return HalvesPlan(tuple(half("reduce-scatter")), tuple(half("all-gather"))[::-1], size, size)

    return Halves(axes, scatter, gather, plan)


@expressed
def scattered(axis: Axis, inner: Reducer) -> Reducer:
    """Reduce-scatter over `axis`, `inner` on the shard of each device, all-gather over `axis`.

    Law: `scattered("device", all_reduce("host"))` equals `all_reduce("host", "device")`. With c devices a
    host and h hosts each device sends `2 (c-1)/c S` inside the host and only `2 (h-1)/h S/c` across.
    Nested once per level it is BlueConnect (Cho et al., MLSys 2019), for levels inside an axis with `factored`;
    with two levels also NCCL's and Horovod's hierarchical all-reduce.

    The message must have a multiple of `size(axis)` elements; `bucketed` pads to it.
    """
    return bracket(xla_halves(axis), inner)


def _at_once(axes: Sequence[_Named]) -> list[tuple[_Named, ...]]:
    """The axes that one collective spans: all; inside `tiled` each by itself, as TPUs scatter along lines alone."""
    if tile_elements() > 1:
        return [(axis,) for axis in axes]
    return [tuple(axes)] if axes else []


def _longer_than_one(axes: Sequence[Axis]) -> tuple[str, ...]:
    """The mesh axes to exchange over. Those of one device are left out: vmap, which may bind one, refuses several."""
    return tuple(mesh_axis(axis) for axis in axes if digit_of(axis, BOUND_AXES).size > 1)


def _groups(axes: Sequence[Axis], axis_sizes: AxisSizes) -> tuple[tuple[int, ...], ...] | None:
    """Places that take part together, if `axes` is a factor of a mesh axis; None: all along the axes do."""
    return groups_of(axes[0], axis_sizes) or None if len(axes) == 1 else None


def _call(name: str, arguments: Sequence[object]) -> str:
    return f"{name}({', '.join(map(repr, arguments))})"


# ---- Halves made of permutes ----


Round = tuple[Permutation, int]
"""Who sends to whom at the same time, and how many elements each."""


class LineHalf(Protocol):
    """`half(value, line) -> value`: one half of an algorithm, on a line of at least two devices."""

    def __call__(self, value: jax.Array, line: Line, /) -> jax.Array: ...


def permuted_halves(
    axis: Axis,
    scatter: LineHalf,
    gather: LineHalf,
    rounds: Callable[[int, int], Sequence[Round]],
    *,
    name: str,
    piece_bytes: int | None,
    chunks: int | None = None,
) -> Halves:
    """The halves of an algorithm that sends by permutes along a line. The second sends back what the first sent.

    Args:
        axis: a mesh axis, or a factor of one.
        scatter: the first half.
        gather: the second half.
        rounds: of the first half, for a line of this size and a message of so many elements; the second half has
            the inverse permutations in the opposite order.
        name: of the reducer, for errors.
        piece_bytes: a permute sends at most so many bytes; None: any number.
        chunks: of a message whose whole sum the first half leaves on place 0; None: it leaves a shard on each place.
    """
    require_cap(piece_bytes, "piece_bytes")

    def scatter_fn(message: jax.Array) -> jax.Array:
        line = line_of(axis, BOUND_AXES, piece_bytes)
        return scatter(message, line) if line.size > 1 else message

    def gather_fn(shard: jax.Array) -> jax.Array:
        line = line_of(axis, BOUND_AXES, piece_bytes)
        return same_along_axis(gather(shard, line) if line.size > 1 else shard, axis)

    def plan_fn(spec: Spec, axis_sizes: AxisSizes) -> HalvesPlan:
        line = line_of(axis, axis_sizes, piece_bytes)
        multiple = line.size if chunks is None or line.size == 1 else chunks
        what = "the size of the axis" if chunks is None else "the number of chunks"
        require_divides(spec, name, multiple, what)
        there = rounds(line.size, spec.shape[0]) if line.size > 1 else ()
        back = [(inverse(permutation), elements) for permutation, elements in reversed(there)]
        dtype = jnp.dtype(spec.dtype).name
        return HalvesPlan(
            _planned(there, line, dtype), _planned(back, line, dtype), line.size if chunks is None else 1, multiple
        )

    return Halves((axis,), scatter_fn, gather_fn, plan_fn, rooted=chunks is not None)


def _planned(rounds: Sequence[Round], line: Line, dtype: str) -> tuple[Collective, ...]:
    return tuple(c for permutation, elements in rounds for c in line.plan(elements, dtype, permutation))
