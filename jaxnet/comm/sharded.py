"""Values in shards, one on each device: sums arrive in shards, are updated in shards, and are gathered before use.

An all-reduce is a reduce-scatter and an all-gather. Here the two stand apart, so that an optimizer works
between them on its own shard alone, and the all-gather can wait for the head of the next step.

A message is laid out so that one reduce-scatter gives each device its shard of each leaf. Two devices, the leaves `w`
and `b`; a row for each device, with zeros where a leaf does not divide:

    w = [1, 2, 3]   rows [[1, 2],     b = [7]   rows [[7],      message [1, 2, 7,
                          [3, 0]]                     [0]]               3, 0, 0]
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.as_html import html_code
from jaxnet.comm.buckets import Bucket, BucketPlan, Piece, pack, plan_buckets, require_cap, unpack
from jaxnet.comm.expression import default_text, expressed
from jaxnet.comm.guards import require_axes, require_summable, require_varying
from jaxnet.comm.halves import Halves, HalvesPlan, xla_halves
from jaxnet.comm.order import in_place, plan_in_place, reordered
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Plan, PyTree, Reducer, axes_size, stateless
from jaxnet.comm.traffic import buckets_in_flight, tile_elements, wait_in_turn

# ---- The contract ----


class GatherFn(Protocol):
    """`gather(shards, shapes) -> values`: every device gets the whole leaves, of these shapes, and the same bits."""

    def __call__(self, shards: PyTree, shapes: PyTree, /) -> PyTree: ...


class ShardPlanFn(Protocol):
    """`plan(shapes, axis_sizes) -> Plan`: of one `gather`, then one `scatter`; its buckets hold a device's shards."""

    def __call__(self, shapes: PyTree, axis_sizes: AxisSizes, /) -> Plan: ...


class Sharded(NamedTuple):
    """How values are held in shards and made whole. All but `plan` run inside `jax.shard_map`.

    A shard is an array of one dim: `ceil(size / devices)` elements of a leaf, the last ones zeros where it does
    not divide. A tree of shards has the structure of the values, so an optimizer's state keeps it too. Outside
    `shard_map` a leaf's shards are one array of one dim with the sharding `PartitionSpec(axes)`.

    Attributes:
        axes: the mesh axes over which shards follow each other, the slowest first.
        scatter: `scatter(values) -> shards`: each device gets its shard of the sum over the devices.
        gather: see `GatherFn`.
        split: `split(values) -> shards`: a device's shard of values that are the same everywhere; moves nothing.
        plan: see `ShardPlanFn`.
        expression: Python that makes it; `expressed` fills it in.
    """

    axes: tuple[str, ...]
    scatter: Callable[[PyTree], PyTree]
    gather: GatherFn
    split: Callable[[PyTree], PyTree]
    plan: ShardPlanFn
    expression: str = ""

    def __repr__(self) -> str:
        return self.expression or default_text("Sharded", self.scatter)

    def _repr_html_(self) -> str:
        return html_code(repr(self))


Stage = str | tuple[str, ...] | Halves
_Leaves = Sequence[jax.ShapeDtypeStruct | jax.Array]


@expressed
def sharded(*stages: Stage, bucket_bytes: int | None, split: bool = True) -> Sharded:
    """Shards over the axes of `stages`: reduce-scatter over each in turn, all-gather over each in reverse.

    `sharded("device", "host", ...)` sends fewest bytes across hosts: with c devices a host and h hosts each
    device sends `2 (c-1)/c S` inside the host and `2 (h-1)/h S/c` across for one gather and one scatter.
    `sharded(("host", "device"), ...)` takes one stage. `sharded("device", ring_halves("host"), ...)` sends around a
    ring across hosts, and `halving_doubling_halves` sends by halving and doubling.

    Law: `gather(scatter(values), values)` is the sum over the devices; `gather(split(values), values)` is `values`.

    Scatters are issued in the order of the leaves, which should be backward's; gathers in the opposite one,
    forward's. A bucket depends on its own leaves alone, and a gather also on the one before.

    Args:
        stages: a mesh axis each, or several as one, for XLA's collectives; or the halves of another algorithm.
        bucket_bytes: the cap of a message; None puts all leaves of a dtype into one.
        split: whether a leaf may span buckets.

    Raises:
        ValueError: a stage makes no shards (`rooted_halves`), or spans a factor of an axis.

    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices()[:2], ("device",))
    >>> values = {"b": jnp.array([[7], [70]]), "w": jnp.array([[1, 2, 3], [10, 20, 30]])}  # a row for each device
    >>> shards = sharded("device", bucket_bytes=None)
    >>> scatter = lambda values: shards.scatter(jax.tree.map(lambda leaf: leaf[0], values))
    >>> sums = jax.shard_map(scatter, mesh=mesh, in_specs=P("device"), out_specs=P("device"))(values)
    >>> sums["b"].tolist(), sums["w"].tolist()  # of each, the first half lies on device 0
    ([77, 0], [11, 22, 33, 0])
    >>> plan = sharded("device", "host", bucket_bytes=2**20).plan(
    ...     {"w": jax.ShapeDtypeStruct((30, 10), "float32")}, {"host": 2, "device": 4}
    ... )
    >>> [(collective.kind, collective.axes, collective.elements) for collective in plan.collectives]
    [('all-gather', ('host',), 76), ('all-gather', ('device',), 304),
     ('reduce-scatter', ('device',), 304), ('reduce-scatter', ('host',), 76)]
    """
    require_cap(bucket_bytes)
    in_turn = [_halves(stage) for stage in stages]
    axes = tuple(axis for halves in in_turn for axis in _mesh_axes(halves))
    require_axes(axes, "sharded")

    def layout(leaves: _Leaves, devices: int) -> BucketPlan:
        """Buckets of shards: a message is `devices` times as long."""
        cap = None if bucket_bytes is None else max(1, bucket_bytes // devices)
        return plan_buckets(shard_shapes(leaves, devices), cap, split=split, multiple=tile_elements())

    def scatter_fn(values: PyTree) -> PyTree:
        # 1. Refuse leaves that are already summed, each by its name.
        for path, leaf in jax.tree.leaves_with_path(values):
            name = f"leaf {jax.tree_util.keystr(path)}"
            require_summable(leaf, name)
            require_varying(leaf, axes, name)
        # 2. Lay each leaf out as [devices, shard].
        leaves, tree = jax.tree.flatten(values)
        devices = axes_size(axes, BOUND_AXES)
        buckets, rows = layout(leaves, devices), [rows_of(leaf, devices) for leaf in leaves]
        # 3. Reduce-scatter each bucket [devices, shards side by side], stage by stage.
        shards: list[jax.Array] = []
        most = buckets_in_flight() if len(in_turn) > 1 else None
        for index, bucket in enumerate(buckets.buckets):
            with jax.named_scope(f"scatter_{index}"):
                message = wait_in_turn(_pack_rows(bucket, rows), shards, most)
                for halves in in_turn:
                    message = halves.scatter(message)
                shards.append(message)
        # 4. Take the bucket's shard apart into shards of leaves.
        return jax.tree.unflatten(tree, unpack(buckets, shards))

    def gather_fn(shards: PyTree, shapes: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(shapes)
        devices = axes_size(axes, BOUND_AXES)
        buckets = layout(leaves, devices)
        gathered: dict[int, jax.Array] = {}
        before: jax.Array | None = None
        for index, message in reversed(list(enumerate(pack(buckets, jax.tree.leaves(shards))))):
            with jax.named_scope(f"gather_{index}"):
                # Each bucket waits for the one before. Nothing else keeps a compiler from issuing all first stages
                # before the second stage of the first bucket, or all gathers before the first layer.
                if before is not None:
                    message = lax.optimization_barrier((message, before))[0]
                for halves in reversed(in_turn):
                    message = halves.gather(message)
                before = message
            gathered[index] = message.reshape(devices, -1)
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
        plans = [_stage_plans(in_turn, message, axis_sizes) for message in messages]
        gathers = [c for stages in reversed(plans) for stage in reversed(stages) for c in stage.gather]
        scatters = [c for stages in plans for stage in stages for c in stage.scatter]
        return Plan((*gathers, *scatters), buckets=buckets)

    return Sharded(axes, scatter_fn, gather_fn, split_fn, plan_fn)


def _halves(stage: Stage) -> Halves:
    if isinstance(stage, Halves):
        return stage
    return xla_halves(stage) if isinstance(stage, str) else xla_halves(*stage)


def _mesh_axes(halves: Halves) -> list[str]:
    """The mesh axes of a stage; ValueError unless each device along them gets a shard."""
    axes = [axis for axis in halves.axes if isinstance(axis, str)]
    if halves.rooted or len(axes) < len(halves.axes):
        reason = "leaves the whole sum on a root" if halves.rooted else "spans a factor of an axis"
        raise ValueError(
            f"sharded: {halves} {reason}, and a stage must leave a shard on every device of a mesh axis. Take the name "
            "of an axis, ring_halves(...) or halving_doubling_halves(...)"
        )
    return axes


def _stage_plans(stages: Sequence[Halves], message: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> list[HalvesPlan]:
    """The plan of each stage: the first has the whole message, each later one the shard of the one before."""
    plans = []
    for halves in stages:
        plans.append(halves.plan(message, axis_sizes))
        message = plans[-1].shard(message)
    return plans


def _pack_rows(bucket: Bucket, rows: Sequence[jax.Array]) -> jax.Array:
    """Leaves [devices, shard] to a message in which the shards of a device stand together."""
    columns = [rows[piece.leaf][:, piece.start : piece.start + piece.size] for piece in bucket.pieces]
    if bucket.padded > bucket.size:
        columns.append(jnp.zeros((len(columns[0]), bucket.padded - bucket.size), bucket.dtype))
    return _beside(columns).reshape(-1)


def _unpack_rows(plan: BucketPlan, messages: dict[int, jax.Array], leaves: _Leaves) -> list[jax.Array]:
    """Messages [devices, shard of a bucket] to leaves in their shapes."""
    columns: list[list[tuple[int, jax.Array]]] = [[] for _ in leaves]
    for index, bucket in enumerate(plan.buckets):
        for piece in bucket.pieces:
            value = messages[index][:, piece.offset : piece.offset + piece.size]
            columns[piece.leaf].append((piece.start, value))
    return [_join(pieces, leaf) for pieces, leaf in zip(columns, leaves, strict=True)]


def _join(pieces: list[tuple[int, jax.Array]], leaf: jax.ShapeDtypeStruct | jax.Array) -> jax.Array:
    if not pieces:  # a leaf of no elements
        return jnp.zeros(leaf.shape, leaf.dtype)
    return whole_of(_beside([value for _, value in sorted(pieces, key=lambda piece: piece[0])]), leaf.shape)


def _beside(columns: Sequence[jax.Array]) -> jax.Array:
    return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)


# ---- Orders and schedules ----


@expressed
def shards_in_order(order: Sequence[int], inner: Sharded) -> Sharded:
    """Give the leaves to `inner` in another order: leaf `order[0]` first. Trees are unchanged; see `in_order`."""

    def permuted(tree: PyTree) -> list[jax.Array]:
        return reordered(jax.tree.leaves(tree), order)

    def restored(leaves: Sequence[jax.Array], like: PyTree) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(like), in_place(leaves, order))

    return inner._replace(
        scatter=lambda values: restored(inner.scatter(permuted(values)), values),
        gather=lambda shards, shapes: restored(inner.gather(permuted(shards), permuted(shapes)), shapes),
        plan=lambda shapes, axis_sizes: plan_in_place(inner.plan(permuted(shapes), axis_sizes), order),
    )


@expressed
def scatter_after(inner: Sharded) -> Sharded:
    """Schedule: nothing is scattered before backward has produced every gradient; see `after`."""
    return inner._replace(scatter=lambda values: inner.scatter(lax.optimization_barrier(values)))


@expressed
def as_reducer(inner: Sharded) -> Reducer:
    """Scatter, then gather at once: an all-reduce, for a loop that carries no shards."""

    def plan(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        # A plan of shards gathers first, in as many collectives as it scatters, and counts one device's shard.
        own, leaves = inner.plan(shapes, axis_sizes), jax.tree.leaves(shapes)
        half = len(own.collectives) // 2
        whole = own.buckets and _whole_messages(own.buckets, leaves, axes_size(inner.axes, axis_sizes))
        return Plan((*own.collectives[half:], *own.collectives[:half]), buckets=whole)

    return stateless(lambda values: inner.gather(inner.scatter(values), values), plan)


def _whole_messages(buckets: BucketPlan, leaves: Sequence[jax.ShapeDtypeStruct], devices: int) -> BucketPlan:
    """The messages of all `devices`, of buckets that hold one device's shards."""
    made, done = [], [0] * len(leaves)
    for bucket in buckets.buckets:
        pieces: list[Piece] = []
        for piece in bucket.pieces:
            size = filled(math.prod(leaves[piece.leaf].shape), devices, piece.start, piece.size)
            pieces.append(Piece(piece.leaf, done[piece.leaf], size, sum(each.size for each in pieces)))
            done[piece.leaf] += size
        made.append(replace(bucket, pieces=tuple(pieces), padded=devices * bucket.padded))
    return BucketPlan(tuple(tuple(leaf.shape) for leaf in leaves), buckets.dtypes, tuple(made))


# ---- A leaf in shards ----


def shard_size(size: int, devices: int) -> int:
    """Elements of one device's shard of a leaf of `size` elements."""
    return -(-size // devices)


def shard_shapes(leaves: Iterable[jax.ShapeDtypeStruct | jax.Array], devices: int) -> list[jax.ShapeDtypeStruct]:
    """Shape and dtype of one device's shard of each leaf.

    >>> [shard.shape for shard in shard_shapes([jax.ShapeDtypeStruct((3, 3), "float32")], 4)]
    [(3,)]
    """
    return [jax.ShapeDtypeStruct((shard_size(math.prod(leaf.shape), devices),), leaf.dtype) for leaf in leaves]


def rows_of(leaf: jax.Array, devices: int) -> jax.Array:
    """The leaf as [devices, shard]; only a reshape if it divides.

    >>> rows_of(jnp.array([1, 2, 3]), 2).tolist()
    [[1, 2], [3, 0]]
    """
    flat = leaf.reshape(-1)
    shard = shard_size(flat.size, devices)
    return jnp.pad(flat, (0, devices * shard - flat.size)).reshape(devices, shard)


def whole_of(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The leaf of this shape whose shards follow each other in `rows`.

    >>> whole_of(jnp.array([[1, 2], [3, 0]]), (3,)).tolist()
    [1, 2, 3]
    """
    return rows.reshape(-1)[: math.prod(shape)].reshape(shape)


def filled(size: int, devices: int, start: int, width: int) -> int:
    """How many of a leaf's `size` elements are in columns `[start, start + width)` of its rows; the rest are zeros.

    Of the rows [[1, 2], [3, 0]] of a leaf of 3:

    >>> filled(3, 2, start=0, width=1), filled(3, 2, start=1, width=1)
    (2, 1)
    """
    if size == 0:
        return 0
    rows, rest = divmod(size, shard_size(size, devices))
    return rows * width + min(max(rest - start, 0), width)


# ---- Leaves that lead with [members], such as several networks trained at once ----


@expressed
def stacked_shards(inner: Sharded) -> Sharded:
    """As `inner`, for leaves [members, ...], of which a device gets [members, shard]: the same shard of each member.

    So what an optimizer does with a shard of one network can be mapped over the first dim. The messages are those of
    leaves in which each member ends in zeros of its own. Outside `shard_map` a leaf's shards have the sharding
    `PartitionSpec(None, axes)`.

    >>> from jaxnet.comm import sharded
    >>> shards = stacked_shards(sharded("device", bucket_bytes=None))
    >>> plan = shards.plan({"w": jax.ShapeDtypeStruct((3, 9), "float32")}, {"device": 2})
    >>> [collective.elements for collective in plan.collectives]
    [30, 30]
    """

    def in_shards(cut: Callable[[PyTree], PyTree], values: PyTree) -> PyTree:
        devices = axes_size(inner.axes, BOUND_AXES)
        shards = cut(jax.tree.map(lambda leaf: _by_device(leaf, devices), values))
        return jax.tree.map(lambda shard, leaf: shard.reshape(leaf.shape[0], -1), shards, values)

    def scatter_fn(values: PyTree) -> PyTree:
        return in_shards(inner.scatter, values)

    def gather_fn(shards: PyTree, shapes: PyTree) -> PyTree:
        devices = axes_size(inner.axes, BOUND_AXES)
        flat = jax.tree.map(lambda shard: shard.reshape(-1), shards)
        values = inner.gather(flat, jax.tree.map(lambda leaf: _shape(leaf, devices), shapes))
        return jax.tree.map(lambda value, leaf: _by_member(value, leaf.shape, devices), values, shapes)

    def split_fn(values: PyTree) -> PyTree:
        return in_shards(inner.split, values)

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        devices = axes_size(inner.axes, axis_sizes)
        return inner.plan(jax.tree.map(lambda leaf: _shape(leaf, devices), shapes), axis_sizes)

    return Sharded(inner.axes, scatter_fn, gather_fn, split_fn, plan_fn)


def stacked_filled(size: int, members: int, devices: int, start: int, width: int) -> int:
    """As `filled`, for a leaf of `members` of `size` elements together: each ends in zeros of its own.

    >>> stacked_filled(6, 2, 2, start=0, width=4), stacked_filled(6, 2, 2, start=1, width=2)
    (6, 3)
    """
    own, end = shard_size(size // members, devices), start + width
    cuts = [(max(start, own * index), min(end, own * (index + 1))) for index in range(members)]
    return sum(
        filled(size // members, devices, first - own * index, last - first)
        for index, (first, last) in enumerate(cuts)
        if first < last
    )


def _shape(leaf: jax.ShapeDtypeStruct | jax.Array, devices: int) -> jax.ShapeDtypeStruct:
    """That of `_by_device`."""
    members, *dims = leaf.shape
    return jax.ShapeDtypeStruct((devices * members * shard_size(math.prod(dims), devices),), leaf.dtype)


def _by_device(leaf: jax.Array, devices: int) -> jax.Array:
    """[members, ...] as one dim, which cut into equal shards is [devices, members, shard].

    >>> _by_device(jnp.array([[1, 2, 3], [4, 5, 6]]), 2).reshape(2, -1).tolist()
    [[1, 2, 4, 5], [3, 0, 6, 0]]
    """
    rows = jax.vmap(lambda member: rows_of(member, devices))(leaf)
    return rows.swapaxes(0, 1).reshape(-1)


def _by_member(flat: jax.Array, shape: Sequence[int], devices: int) -> jax.Array:
    """The inverse of `_by_device`, for a leaf of this shape."""
    members, *dims = shape
    rows = flat.reshape(devices, members, -1).swapaxes(0, 1).reshape(members, -1)
    return rows[:, : math.prod(dims)].reshape(members, *dims)
