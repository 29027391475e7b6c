"""A reducer as an optax gradient transformation, for a training loop that is not ours."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxnet.comm.collective import axes_size
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, PyTree, Reducer


class GradientTransformation(NamedTuple):
    """The pair `(init, update)` that `optax.chain` takes. Defined here so that this package needs jax alone."""

    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def as_gradient_transformation(reducer: Reducer, axis_sizes: AxisSizes) -> GradientTransformation:
    """Average gradients over the mesh as the first link of an `optax.chain`.

    `update` must run where the mesh axes are bound: inside `jax.shard_map` or `jax.pmap`. A reducer with
    state needs that state sharded one per device.

    Args:
        reducer: sums over the mesh.
        axis_sizes: the mesh's `shape`.

    >>> from jaxnet.comm import all_reduce, bucketed
    >>> average = as_gradient_transformation(bucketed(all_reduce("host", "device"), 2**20), {"host": 1, "device": 1})
    >>> # optimizer = optax.chain(average, optax.sgd(0.1))
    """
    axes = tuple(axis_sizes)

    def init_fn(params: PyTree) -> PyTree:
        return reducer.init(params, axis_sizes)

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree | None = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        del params, extra_args
        sums, state = reducer.reduce(updates, state)
        count = axes_size(axes, BOUND_AXES)
        return jax.tree.map(lambda total: total / count, sums), state

    return GradientTransformation(init_fn, update_fn)
