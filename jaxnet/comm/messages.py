"""A tree as messages, each of which a program sums by itself: see `jaxnet.comm.pieces`."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jaxnet.comm.buckets import BucketPlan, pack, unpack
from jaxnet.comm.order import in_place, reordered
from jaxnet.comm.reducer import AxisSizes, Collective, PyTree, Reducer


@dataclass(frozen=True, eq=False)
class Messages:
    """How a tree becomes messages, and sums of messages a tree, for programs that send each message by itself.

    Attributes:
        reducers: of each message, the bucket reducer that sums it.
        buckets: how leaves, in `order`, map to messages.
        order: of the leaves.
        tree: the structure of the values.
    """

    reducers: tuple[Reducer, ...]
    buckets: BucketPlan
    order: tuple[int, ...]
    tree: jax.tree_util.PyTreeDef

    @property
    def specs(self) -> list[jax.ShapeDtypeStruct]:
        """Shape and dtype of each message."""
        return [bucket.spec for bucket in self.buckets.buckets]

    def collectives(self, axis_sizes: AxisSizes) -> list[tuple[Collective, ...]]:
        """What travels of each message."""
        pairs = zip(self.reducers, self.specs, strict=True)
        return [reducer.plan(spec, axis_sizes).collectives for reducer, spec in pairs]

    def pack(self, values: PyTree) -> list[jax.Array]:
        """The messages: arrays of one dim."""
        return pack(self.buckets, reordered(jax.tree.leaves(values), self.order))

    def unpack(self, sums: Sequence[jax.Array]) -> PyTree:
        """The tree again: `unpack(pack(values))` is `values`."""
        return jax.tree.unflatten(self.tree, in_place(unpack(self.buckets, sums), self.order))


def messages_of(
    reducer: Reducer, shapes: PyTree, axis_sizes: AxisSizes, order: Sequence[int] | None = None
) -> Messages:
    """The messages in which a tree reducer sums values of these shapes, taking leaves in `order`.

    Raises:
        ValueError: the messages of this reducer depend on each other, or it makes none.

    >>> from jaxnet.comm import all_reduce, bucketed
    >>> reducer, shapes = bucketed(all_reduce("host"), 16), {"w": jax.ShapeDtypeStruct((6,), "float32")}
    >>> messages = messages_of(reducer, shapes, {"host": 2})
    >>> [spec.shape for spec in messages.specs]
    [(3,), (3,)]
    """
    leaves, tree = jax.tree.flatten(shapes)
    order = tuple(range(len(leaves))) if order is None else tuple(order)
    buckets = reducer.plan(reordered(leaves, order), axis_sizes).buckets
    if reducer.message is None or buckets is None:
        raise ValueError("the reducer does not sum its messages one by one, as `bucketed` and `grouped` do")
    reducers = tuple(reducer.message(buckets.shapes_in(bucket)) for bucket in buckets.buckets)
    return Messages(reducers, buckets, order, tree)
