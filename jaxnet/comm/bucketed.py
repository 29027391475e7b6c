"""Tree reducers: a pytree of gradients as a few messages, in an order and at a time of our choice.

`bucketed` and `grouped` lift a bucket reducer, which sums one array of one dim, to a pytree; `by_bucket` gives whole
leaves to a tree reducer, a bucket at a time. `in_order` decides which leaves share a message; `during` and `after`
decide when messages travel.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.buckets import BucketPlan, Leaf, pack, plan_buckets, plan_groups, require_cap, unpack
from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import require_count, require_sum, require_summable, require_varying, same_along, varying_axes
from jaxnet.comm.order import Groups, in_place, plan_in_place, reordered
from jaxnet.comm.reducer import (
    BOUND_AXES,
    FIRST_STATE,
    AxisSizes,
    ByMessage,
    Collective,
    Plan,
    PyTree,
    Reducer,
    require_reducer,
)
from jaxnet.comm.traffic import buckets_in_flight, tile_elements, wait_in_turn

# ---- Pytrees as messages ----


@expressed
def bucketed(
    inner: Reducer,
    bucket_bytes: int | None,
    *,
    first_bucket_bytes: int | None = None,
    split: bool = True,
    in_flight: int | None = None,
) -> Reducer:
    """Sum a pytree as buckets, each with `inner`. See `plan_buckets` for how they are filled.

    Law: for any `bucket_bytes` the result is that of `inner` on each leaf, up to the order of summation.
    Each bucket depends on its own leaves alone, so it can travel as soon as backward has produced them
    (PyTorch DDP, Li et al., VLDB 2020; Horovod's tensor fusion, Sergeev and Del Balso, 2018).

    Args:
        inner: sums one message.
        bucket_bytes: the cap of a message; None puts all leaves of a dtype into one.
        first_bucket_bytes: the cap of the first bucket of each dtype.
        split: whether a leaf may span buckets.
        in_flight: bucket i starts only when bucket i - `in_flight` has been summed, which bounds how
            many travel at once and gives all devices the same partial order (Caffe2: 4, later 16); None: what
            `pipelined` says, or no bound. XLA:CPU runs the collectives of a program one at a time anyway, and 1 puts
            most of them last.

    >>> from jaxnet.comm import MiB, all_reduce, scattered
    >>> reducer = bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB)
    >>> shapes = {"kernel": jax.ShapeDtypeStruct((30, 10), "float32"), "bias": jax.ShapeDtypeStruct((10,), "float32")}
    >>> plan = reducer.plan(shapes, {"host": 2, "device": 4})
    >>> [collective.kind for collective in plan.collectives]
    ['reduce-scatter', 'all-reduce', 'all-gather']
    >>> plan.buckets.buckets[0].padded
    312
    """

    require_reducer(inner, "bucketed")
    require_cap(bucket_bytes)
    require_cap(first_bucket_bytes, "first_bucket_bytes")

    def layout(leaves: Sequence[Leaf], multiple: int) -> BucketPlan:
        return plan_buckets(leaves, bucket_bytes, first_bucket_bytes=first_bucket_bytes, split=split, multiple=multiple)

    return _message_by_message(inner, layout, in_flight)


@expressed
def grouped(inner: Reducer, choose: Callable[[Sequence[int]], Groups]) -> Reducer:
    """Sum a pytree as the groups of whole leaves that `choose` makes of the leaves' sizes in bytes.

    Law: as `bucketed`.

    Args:
        choose: gives each message's leaves by their places, in the order in which messages are issued, such as
            `merged_by_cost(...)` and `merged_up_to(...)`. A group of two dtypes becomes two messages. A function
            of your own prints by its name.

    >>> from jaxnet.comm import all_reduce
    >>> reducer = grouped(all_reduce("host"), lambda sizes: [[0, 1], [2]])
    >>> shapes = [jax.ShapeDtypeStruct((size,), "float32") for size in (10, 20, 40)]
    >>> [collective.elements for collective in reducer.plan(shapes, {"host": 2}).collectives]
    [30, 40]
    """

    require_reducer(inner, "grouped")

    def layout(leaves: Sequence[Leaf], multiple: int) -> BucketPlan:
        sizes = [math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in leaves]
        return plan_groups(leaves, choose(sizes), multiple=multiple)

    return _message_by_message(inner, layout)


def _message_by_message(
    inner: Reducer, layout: Callable[[Sequence[Leaf], int], BucketPlan], in_flight: int | None = None
) -> Reducer:
    """The tree reducer that sums each message of `layout(leaves, multiple)` with `inner`."""
    if in_flight is not None:
        require_count(in_flight, "in_flight")

    def buckets_of(leaves: Sequence[Leaf], axis_sizes: AxisSizes) -> BucketPlan:
        """The plan of the messages, padded so that `inner` takes them."""
        multiple = inner.plan(jax.ShapeDtypeStruct((0,), jnp.float32), axis_sizes).multiple
        return layout(leaves, multiple * tile_elements() if multiple > 1 else 1)

    def init_fn(shapes: PyTree, axis_sizes: AxisSizes) -> PyTree:
        buckets = buckets_of(jax.tree.leaves(shapes), axis_sizes).buckets
        return tuple(inner.init(bucket.spec, axis_sizes) for bucket in buckets)

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        buckets = buckets_of(jax.tree.leaves(shapes), axis_sizes)
        return Plan(_collectives(inner, buckets, axis_sizes), buckets=buckets)

    def reduce_fn(grads: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        leaves, tree = jax.tree.flatten(grads)
        # 1. Plan, and check each leaf by its name.
        buckets = buckets_of(leaves, BOUND_AXES)
        collectives = _collectives(inner, buckets, BOUND_AXES)
        axes = tuple(dict.fromkeys(axis for collective in collectives for axis in collective.axes))
        _guard(grads, axes)
        # 2. Do not pack what does not travel: that would copy every gradient twice.
        if not collectives:
            return jax.tree.unflatten(tree, _each_alone(inner, leaves)), state
        # 3. Sum message by message; each has a state of its own.
        _require_state(state, buckets)
        sums: list[jax.Array] = []
        states = []
        in_stages = len(collectives) > len(buckets.buckets)
        most = in_flight or (buckets_in_flight() if in_stages else None)
        for index, message in enumerate(pack(buckets, leaves)):
            message = wait_in_turn(message, sums, most)
            with jax.named_scope(f"bucket_{index}"):
                result = inner.reduce(message, state[index])
            require_sum(result, message, axes, f"{inner!r:.80}")
            total, after = result
            sums.append(total)
            states.append(after)
        # 4. Back to leaves.
        return jax.tree.unflatten(tree, unpack(buckets, sums)), tuple(states)

    return Reducer(init_fn, reduce_fn, plan_fn, ByMessage(reduce_fn, lambda shapes: inner))


@expressed
def by_bucket(inner: Reducer, bucket_bytes: int | None) -> Reducer:
    """Give a pytree to a tree reducer in buckets of whole leaves, each with a state of its own.

    Law: the sums are those of `inner` on the leaves of each bucket alone. For what needs the shapes of leaves, such as
    `powersgd`: its factors then travel as soon as backward has produced the bucket's leaves.

    Args:
        inner: a tree reducer.
        bucket_bytes: a bucket closes once it has reached this size; None: a bucket a dtype.

    >>> from jaxnet.comm import all_reduce, powersgd
    >>> reducer = by_bucket(powersgd(1, bucketed(all_reduce("host"), None), factors=all_reduce("host")), 4096)
    >>> kernels = [jax.ShapeDtypeStruct((32, 32), "float32")] * 2
    >>> [collective.elements for collective in reducer.plan(kernels, {"host": 2}).collectives]
    [32, 32, 32, 32]
    """

    require_reducer(inner, "by_bucket")
    require_cap(bucket_bytes)

    def layout(leaves: Sequence[Leaf]) -> BucketPlan:
        return plan_buckets(leaves, bucket_bytes, split=False)

    def parts(leaves: Sequence[Leaf]) -> list[list[Leaf]]:
        return [[leaves[piece.leaf] for piece in bucket.pieces] for bucket in layout(leaves).buckets]

    def init_fn(shapes: PyTree, axis_sizes: AxisSizes) -> PyTree:
        return tuple(inner.init(part, axis_sizes) for part in parts(jax.tree.leaves(shapes)))

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        leaves = jax.tree.leaves(shapes)
        plans = [inner.plan(part, axis_sizes) for part in parts(leaves)]
        return Plan(tuple(each for plan in plans for each in plan.collectives), buckets=layout(leaves))

    def reduce_fn(grads: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        leaves, tree = jax.tree.flatten(grads)
        buckets, given = layout(leaves), parts(leaves)
        # 1. Check each leaf by its name, which `inner` does not know.
        collectives = plan_fn(grads, BOUND_AXES).collectives
        _guard(grads, tuple(dict.fromkeys(axis for collective in collectives for axis in collective.axes)))
        _require_state(state, buckets)
        # 2. Sum bucket by bucket. A leaf of no elements is in none.
        sums = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        states = []
        for index, (bucket, part) in enumerate(zip(buckets.buckets, given, strict=True)):
            with jax.named_scope(f"bucket_{index}"):
                totals, after = inner.reduce(part, state[index])
            states.append(after)
            for piece, total in zip(bucket.pieces, totals, strict=True):
                sums[piece.leaf] = total
        return jax.tree.unflatten(tree, sums), tuple(states)

    message = functools.cache(functools.partial(_side_by_side, inner))
    return Reducer(init_fn, reduce_fn, plan_fn, ByMessage(reduce_fn, message), by_shape=inner.by_shape)


def _side_by_side(inner: Reducer, shapes: tuple[tuple[int, ...], ...]) -> Reducer:
    """The bucket reducer of a message in which leaves of these shapes lie side by side."""
    ends = list(itertools.accumulate(map(math.prod, shapes)))

    def specs(message: Leaf) -> list[Leaf]:
        return [jax.ShapeDtypeStruct(shape, message.dtype) for shape in shapes]

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        flat = jnp.split(message, ends[:-1])
        totals, state = inner.reduce([each.reshape(shape) for each, shape in zip(flat, shapes, strict=True)], state)
        return jnp.concatenate([total.reshape(-1) for total in totals]), state

    return Reducer(
        lambda message, axis_sizes: inner.init(specs(message), axis_sizes),
        reduce_fn,
        lambda message, axis_sizes: Plan(inner.plan(specs(message), axis_sizes).collectives),
        expression=f"{inner!r} of {len(shapes)} leaves",
    )


def _collectives(inner: Reducer, buckets: BucketPlan, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    return tuple(c for bucket in buckets.buckets for c in inner.plan(bucket.spec, axis_sizes).collectives)


def _each_alone(inner: Reducer, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Each leaf as a message of its own, without padding."""
    each = plan_groups(leaves, [[place] for place in range(len(leaves))])
    return unpack(each, [inner.reduce(flat, inner.init(flat, BOUND_AXES))[0] for flat in pack(each, leaves)])


def _guard(grads: PyTree, axes: Sequence[str]) -> None:
    """Check each leaf before packing: beside one that varies, a leaf that is already summed would go unnoticed."""
    for path, leaf in jax.tree.leaves_with_path(grads):
        name = f"leaf {jax.tree_util.keystr(path)}"
        require_summable(leaf, name)
        require_varying(leaf, axes, name)


def _require_state(state: PyTree, plan: BucketPlan) -> None:
    """Raise ValueError unless there is a state for each message."""
    got = f"{len(state)}" if isinstance(state, tuple | list) else f"a {type(state).__name__}"
    if got != f"{len(plan.buckets)}":
        raise ValueError(f"wanted a tuple of {len(plan.buckets)} states, one a message, got {got}. {FIRST_STATE}")


# ---- Order and schedule ----


@expressed
def in_order(order: Sequence[int], inner: Reducer) -> Reducer:
    """Give the leaves to `inner` in another order: leaf `order[0]` first. The result's tree is unchanged.

    Buckets are filled in the order of the leaves, so this decides which gradients travel together; see
    `backward_order` for the order in which they become ready.
    """

    def permuted(tree: PyTree) -> list[jax.Array]:
        return reordered(jax.tree.leaves(tree), order)

    def reduce_fn(grads: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        sums, state = inner.reduce(permuted(grads), state)
        return jax.tree.unflatten(jax.tree.structure(grads), in_place(sums, order)), state

    return inner.with_same_messages(
        init=lambda shapes, axis_sizes: inner.init(permuted(shapes), axis_sizes),
        reduce=reduce_fn,
        plan=lambda shapes, axis_sizes: plan_in_place(inner.plan(permuted(shapes), axis_sizes), order),
    )


@expressed
def after(inner: Reducer) -> Reducer:
    """Schedule: nothing travels before backward has produced every gradient (S-Caffe's SC-B).

    See `during` for the other schedule. The program needs `compiler_options`, or XLA:CPU deletes the barrier. Where
    nothing travels, there is none.
    """

    def reduce_fn(grads: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        return inner.reduce(lax.optimization_barrier(grads) if _travels(inner, grads) else grads, state)

    return inner.with_same_messages(reduce=reduce_fn)


@expressed
def during(inner: Reducer) -> Reducer:
    """Schedule: a bucket travels as soon as backward has produced it (Caffe2, PyTorch DDP), in memory of its own.

    Buckets depend on their own leaves alone, so any bucketed reducer has this schedule. But XLA reuses the memory of
    a gradient that is being sent for one that is computed later; on CPU the later one then waits until the first has
    been sent, and nothing overlaps. So this holds all gradients until all sums are there. It costs as much memory as
    the gradients need, as PyTorch DDP's buckets do. Where nothing travels, nothing is held.
    """

    def reduce_fn(grads: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        sums, state = inner.reduce(grads, state)
        if not _travels(inner, grads):
            return sums, state
        held, _ = lax.optimization_barrier((sums, grads))
        return jax.tree.map(_typed_as, held, sums), state

    return inner.with_same_messages(reduce=reduce_fn)


def _travels(reducer: Reducer, grads: PyTree) -> bool:
    return bool(reducer.plan(grads, BOUND_AXES).collectives)


def _typed_as(value: jax.Array, like: jax.Array) -> jax.Array:
    """`value`, the result of a barrier, with the type of `like`: a barrier types all results as what varies most."""
    return same_along(value, varying_axes(value) - varying_axes(like))
