"""Values in parts, one a device: sums arrive as parts, are updated as parts, and are gathered before use.

An all-reduce is a reduce-scatter and an all-gather. Here the two stand apart, so that an optimizer works
between them on its own part alone, and the all-gather can wait for the head of the next step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.algorithms.stages import Stages, gather_message, gather_plan, scatter_message, scatter_plan
from jaxnet.comm.buckets.order import in_place, reordered
from jaxnet.comm.buckets.packing import pack, unpack
from jaxnet.comm.buckets.plan import Bucket, BucketPlan, plan_buckets, require_cap
from jaxnet.comm.collective import axes_size
from jaxnet.comm.dtypes import require_summable
from jaxnet.comm.parts import part_shapes, rows_of, whole_of
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Plan, PyTree, Reducer, stateless
from jaxnet.comm.vma import require_varying

_Leaves = Sequence[jax.ShapeDtypeStruct | jax.Array]


class GatherFn(Protocol):
    """`gather(parts, shapes) -> values`: every device gets the whole leaves, of these shapes, and the same bits."""

    def __call__(self, parts: PyTree, shapes: PyTree, /) -> PyTree: ...


class ShardPlanFn(Protocol):
    """`plan(shapes, axis_sizes) -> Plan`: of one `gather`, then one `scatter`; its buckets hold a device's part."""

    def __call__(self, shapes: PyTree, axis_sizes: AxisSizes, /) -> Plan: ...


class Sharded(NamedTuple):
    """How values are held in parts and made whole. All but `plan` run inside `jax.shard_map`.

    A part is an array of one dim: `ceil(size / devices)` elements of a leaf, the last ones zeros where it does
    not divide. A tree of parts has the structure of the values, so an optimizer's state keeps it too. Outside
    `shard_map` a leaf's parts are one array of one dim with the sharding `PartitionSpec(axes)`.

    Attributes:
        axes: the mesh axes over which parts follow each other, the slowest first.
        scatter: `scatter(values) -> parts`: each device gets its part of the sum over the devices.
        gather: see `GatherFn`.
        split: `split(values) -> parts`: a device's part of values that are the same everywhere; moves nothing.
        plan: see `ShardPlanFn`.
    """

    axes: tuple[str, ...]
    scatter: Callable[[PyTree], PyTree]
    gather: GatherFn
    split: Callable[[PyTree], PyTree]
    plan: ShardPlanFn


def sharded(*stages: str | tuple[str, ...], bucket_bytes: int | None, split: bool = True) -> Sharded:
    """Parts over the axes of `stages`: reduce-scatter over each in turn, all-gather over each in reverse.

    `sharded("device", "host", ...)` sends fewest bytes across hosts: with c devices a host and h hosts each
    device sends `2 (c-1)/c S` inside the host and `2 (h-1)/h S/c` across for one gather and one scatter.
    `sharded(("host", "device"), ...)` takes one stage.

    Law: `gather(scatter(values), values)` is the sum over the devices; `gather(split(values), values)` is `values`.

    Scatters are issued in the order of the leaves, which should be backward's; gathers in the opposite one,
    forward's. A bucket depends on its own leaves alone, and a gather on the one before besides.

    Args:
        stages: a mesh axis each, or several as one.
        bucket_bytes: the cap of a message; None puts all leaves of a dtype into one.
        split: whether a leaf may span buckets.

    >>> shards = sharded("device", "host", bucket_bytes=2**20)
    >>> plan = shards.plan({"w": jax.ShapeDtypeStruct((30, 10), "float32")}, {"host": 2, "device": 4})
    >>> [(collective.kind, collective.axes, collective.elements) for collective in plan.collectives]
    [('all-gather', ('host',), 76), ('all-gather', ('device',), 304),
     ('reduce-scatter', ('device',), 304), ('reduce-scatter', ('host',), 76)]
    """
    order: Stages = tuple((stage,) if isinstance(stage, str) else stage for stage in stages)
    axes = tuple(axis for stage in order for axis in stage)
    require_cap(bucket_bytes)

    def layout(leaves: _Leaves, devices: int) -> BucketPlan:
        cap = None if bucket_bytes is None else max(1, bucket_bytes // devices)
        return plan_buckets(part_shapes(leaves, devices), cap, split=split)

    def scatter_fn(values: PyTree) -> PyTree:
        for path, leaf in jax.tree.leaves_with_path(values):
            name = f"leaf {jax.tree_util.keystr(path)}"
            require_summable(leaf, name)
            require_varying(leaf, axes, name)
        leaves, tree = jax.tree.flatten(values)
        devices = axes_size(axes, BOUND_AXES)
        buckets, rows = layout(leaves, devices), [rows_of(leaf, devices) for leaf in leaves]
        parts = []
        for index, bucket in enumerate(buckets.buckets):
            with jax.named_scope(f"scatter_{index}"):
                parts.append(scatter_message(_pack_rows(bucket, rows), order))
        return jax.tree.unflatten(tree, unpack(buckets, parts))

    def gather_fn(parts: PyTree, shapes: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(shapes)
        devices = axes_size(axes, BOUND_AXES)
        buckets = layout(leaves, devices)
        gathered: dict[int, jax.Array] = {}
        before: jax.Array | None = None
        for index, part in reversed(list(enumerate(pack(buckets, jax.tree.leaves(parts))))):
            with jax.named_scope(f"gather_{index}"):
                # Nothing else keeps a compiler from issuing all first stages before the second stage of the
                # first, or all gathers before the first layer.
                part = part if before is None else lax.optimization_barrier((part, before))[0]
                before = gather_message(part, order)
            gathered[index] = before.reshape(devices, -1)
        return jax.tree.unflatten(tree, _unpack_rows(buckets, gathered, leaves))

    def split_fn(values: PyTree) -> PyTree:
        devices, place = axes_size(axes, BOUND_AXES), lax.axis_index(axes)
        return jax.tree.map(
            lambda leaf: lax.dynamic_index_in_dim(rows_of(leaf, devices), place, keepdims=False), values
        )

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        devices = axes_size(axes, axis_sizes)
        buckets = layout(jax.tree.leaves(shapes), devices)
        messages = [jax.ShapeDtypeStruct((bucket.padded * devices,), bucket.dtype) for bucket in buckets.buckets]
        gathers = [c for message in reversed(messages) for c in gather_plan(message, order, axis_sizes)]
        scatters = [c for message in messages for c in scatter_plan(message, order, axis_sizes)]
        return Plan((*gathers, *scatters), buckets=buckets)

    return Sharded(axes, scatter_fn, gather_fn, split_fn, plan_fn)


def _pack_rows(bucket: Bucket, rows: Sequence[jax.Array]) -> jax.Array:
    """Leaves [devices, part] to a message in which the parts of a device stand together."""
    return _beside([rows[piece.leaf][:, piece.start : piece.start + piece.size] for piece in bucket.pieces]).reshape(-1)


def _unpack_rows(plan: BucketPlan, messages: dict[int, jax.Array], leaves: _Leaves) -> list[jax.Array]:
    """Messages [devices, part of a bucket] to leaves in their shapes."""
    columns: list[list[tuple[int, jax.Array]]] = [[] for _ in leaves]
    for index, bucket in enumerate(plan.buckets):
        for piece in bucket.pieces:
            value = messages[index][:, piece.offset : piece.offset + piece.size]
            columns[piece.leaf].append((piece.start, value))
    return [_join(pieces, leaf) for pieces, leaf in zip(columns, leaves, strict=True)]


def _join(pieces: list[tuple[int, jax.Array]], leaf: jax.ShapeDtypeStruct | jax.Array) -> jax.Array:
    if not pieces:
        return jnp.zeros(leaf.shape, leaf.dtype)
    return whole_of(_beside([value for _, value in sorted(pieces, key=lambda piece: piece[0])]), leaf.shape)


def _beside(columns: Sequence[jax.Array]) -> jax.Array:
    return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)


def parts_in_order(order: Sequence[int], inner: Sharded) -> Sharded:
    """Give the leaves to `inner` in another order: leaf `order[0]` first. Trees are unchanged; see `in_order`."""

    def permuted(tree: PyTree) -> list[jax.Array]:
        return reordered(jax.tree.leaves(tree), order)

    def restored(leaves: Sequence[jax.Array], like: PyTree) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(like), in_place(leaves, order))

    return inner._replace(
        scatter=lambda values: restored(inner.scatter(permuted(values)), values),
        gather=lambda parts, shapes: restored(inner.gather(permuted(parts), permuted(shapes)), shapes),
        plan=lambda shapes, axis_sizes: inner.plan(permuted(shapes), axis_sizes),
    )


def scatter_after(inner: Sharded) -> Sharded:
    """Schedule: nothing is scattered before backward has produced every gradient; see `after`."""
    return inner._replace(scatter=lambda values: inner.scatter(lax.optimization_barrier(values)))


def as_reducer(inner: Sharded) -> Reducer:
    """Scatter, then gather at once: an all-reduce, for a loop that carries no parts."""
    return stateless(lambda values: inner.gather(inner.scatter(values), values), inner.plan)
