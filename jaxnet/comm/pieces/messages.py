"""A tree of values as the messages in which a reducer sums them, for programs that send each by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jaxnet.comm.buckets.order import in_place, reordered
from jaxnet.comm.buckets.packing import pack, unpack
from jaxnet.comm.buckets.plan import BucketPlan
from jaxnet.comm.reducer import AxisSizes, PyTree, Reducer


@dataclass(frozen=True, eq=False)
class Messages:
    """How a tree becomes messages, and sums of messages a tree.

    Attributes:
        reducer: sums one message.
        buckets: how leaves, in `order`, map to messages.
        order: of the leaves.
        tree: the structure of the values.
    """

    reducer: Reducer
    buckets: BucketPlan
    order: tuple[int, ...]
    tree: jax.tree_util.PyTreeDef

    @property
    def specs(self) -> list[jax.ShapeDtypeStruct]:
        """Shape and dtype of each message."""
        return [bucket.spec for bucket in self.buckets.buckets]

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
    return Messages(reducer.message, buckets, order, tree)
