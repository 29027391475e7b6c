"""Everything that one step hands to the next."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnet.comm import Reducer, one_per_device, replicated
from jaxnet.models import Model
from jaxnet.training.ensemble import member_keys
from jaxnet.training.steps.initial import with_values
from jaxnet.training.steps.loss_scale import LossScale, first_scale

PyTree = Any


class TrainState(NamedTuple):
    """State of a run. Whole on every device, but for `comm`, whose leaves lead with [hosts, devices].

    Under a 'deferred' schedule the step takes and gives parameters, their average and the optimizer's state in
    parts, one a device; under a 'local' one each device has these and the running averages for itself. See `Layout`.
    Checkpoints hold whole states under every schedule.

    Attributes:
        step: steps done, int32 [].
        params: the model's parameters.
        stats: BatchNorm's running averages; the mean over devices.
        optimizer: the optimizer's state.
        comm: the reducer's state, one per device.
        average: exponential moving average of the parameters, or None.
        key: key data of the run's random numbers, uint32 [2]; of an ensemble [members, 2].
        scale: of the loss, where the model computes in float16; else None.
    """

    step: jax.Array
    params: PyTree
    stats: PyTree
    optimizer: PyTree
    comm: PyTree
    average: PyTree | None
    key: jax.Array
    scale: LossScale | None = None


def first_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    reducer: Reducer | None,
    mesh: Mesh,
    image_shape: tuple[int, ...],
    seed: int,
    initial: Mapping[str, jax.Array] = MappingProxyType({}),
    *,
    averaged: bool = False,
    scaled: bool = False,
    members: int | None = None,
) -> TrainState:
    """The whole state before the first step: a function of `seed`, and of values by name, the same on any mesh.

    To be traced: `Layout.make` makes it on the mesh, and under `jax.eval_shape` it gives shapes alone. With `members`
    the model is that of an ensemble, and the optimizer too.
    """
    key = jax.random.key(seed) if members is None else member_keys(seed, members)
    variables = with_values(model.init(key, jnp.zeros((1, *image_shape), jnp.float32)), initial)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables.params,
        stats=variables.stats,
        optimizer=optimizer.init(variables.params),
        comm=first_comm(reducer, variables.params, mesh),
        # A copy, because every leaf of the state is donated and must be a buffer of its own.
        average=jax.tree.map(jnp.copy, variables.params) if averaged else None,
        key=jax.random.key_data(key),
        scale=first_scale() if scaled else None,
    )


def first_comm(reducer: Reducer | None, params: PyTree, mesh: Mesh) -> PyTree:
    """The reducer's state before the first step, one per device, for parameters of these shapes. To be traced."""
    state = () if reducer is None else reducer.init(params, mesh.shape)
    dims = tuple(mesh.shape.values())
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*dims, *leaf.shape)), state)


def state_shardings(state: TrainState, mesh: Mesh) -> TrainState:
    """The sharding of each leaf of a whole state."""
    shardings = jax.tree.map(lambda _: replicated(mesh), state)
    return shardings._replace(comm=jax.tree.map(lambda _: one_per_device(mesh), state.comm))


def abstract_state(shapes: TrainState, mesh: Mesh) -> TrainState:
    """Shapes of a whole state with their shardings on `mesh`: what a checkpoint is restored to."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        state_shardings(shapes, mesh),
    )
