"""Parts of leaves that lead with [members], such as several networks trained at once: a part of every member."""

import math
from collections.abc import Callable, Sequence

import jax

from jaxnet.comm.collective import axes_size
from jaxnet.comm.parts import filled, part_size, rows_of
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Plan, PyTree
from jaxnet.comm.sharded import Sharded


def stacked_parts(inner: Sharded) -> Sharded:
    """As `inner`, for leaves [members, ...], of which a device gets [members, part]: the same part of each member.

    So what an optimizer does with a part of one network can be mapped over the first dim. The messages are those of
    leaves in which each member ends in zeros of its own. Outside `shard_map` a leaf's parts have the sharding
    `PartitionSpec(None, axes)`.

    >>> from jaxnet.comm import sharded
    >>> shards = stacked_parts(sharded("device", bucket_bytes=None))
    >>> plan = shards.plan({"w": jax.ShapeDtypeStruct((3, 9), "float32")}, {"device": 2})
    >>> [collective.elements for collective in plan.collectives]
    [30, 30]
    """

    def in_parts(cut: Callable[[PyTree], PyTree], values: PyTree) -> PyTree:
        devices = axes_size(inner.axes, BOUND_AXES)
        parts = cut(jax.tree.map(lambda leaf: _by_device(leaf, devices), values))
        return jax.tree.map(lambda part, leaf: part.reshape(leaf.shape[0], -1), parts, values)

    def scatter_fn(values: PyTree) -> PyTree:
        return in_parts(inner.scatter, values)

    def gather_fn(parts: PyTree, shapes: PyTree) -> PyTree:
        devices = axes_size(inner.axes, BOUND_AXES)
        flat = jax.tree.map(lambda part: part.reshape(-1), parts)
        values = inner.gather(flat, jax.tree.map(lambda leaf: _shape(leaf, devices), shapes))
        return jax.tree.map(lambda value, leaf: _by_member(value, leaf.shape, devices), values, shapes)

    def split_fn(values: PyTree) -> PyTree:
        return in_parts(inner.split, values)

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        devices = axes_size(inner.axes, axis_sizes)
        return inner.plan(jax.tree.map(lambda leaf: _shape(leaf, devices), shapes), axis_sizes)

    return Sharded(inner.axes, scatter_fn, gather_fn, split_fn, plan_fn)


def stacked_filled(size: int, members: int, devices: int, start: int, width: int) -> int:
    """As `filled`, for a leaf of `members` of `size` elements together: each ends in zeros of its own.

    >>> stacked_filled(6, 2, 2, start=0, width=4), stacked_filled(6, 2, 2, start=1, width=2)
    (6, 3)
    """
    own, end = part_size(size // members, devices), start + width
    cuts = [(max(start, own * index), min(end, own * (index + 1))) for index in range(members)]
    return sum(
        filled(size // members, devices, first - own * index, last - first)
        for index, (first, last) in enumerate(cuts)
        if first < last
    )


def _shape(leaf: jax.ShapeDtypeStruct | jax.Array, devices: int) -> jax.ShapeDtypeStruct:
    """That of `_by_device`."""
    members, *dims = leaf.shape
    return jax.ShapeDtypeStruct((devices * members * part_size(math.prod(dims), devices),), leaf.dtype)


def _by_device(leaf: jax.Array, devices: int) -> jax.Array:
    """[members, ...] as one dim, which cut into equal parts is [devices, members, part]."""
    rows = jax.vmap(lambda member: rows_of(member, devices))(leaf)
    return rows.swapaxes(0, 1).reshape(-1)


def _by_member(flat: jax.Array, shape: Sequence[int], devices: int) -> jax.Array:
    """What `_by_device` was made from, a leaf of this shape."""
    members, *dims = shape
    rows = flat.reshape(devices, members, -1).swapaxes(0, 1).reshape(members, -1)
    return rows[:, : math.prod(dims)].reshape(members, *dims)
