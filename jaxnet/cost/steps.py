"""Training steps to be timed: one function a schedule, and the same steps without one of their halves.

A step is forward, backward, reduction, mean and SGD in one program, parameters donated, as a training loop has it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnet.comm import (
    AXES,
    DEVICE,
    HOST,
    Plan,
    Reducer,
    Sharded,
    Strategy,
    backward_order,
    compiler_options,
    in_order,
    mesh_size,
    one_per_device,
    parts_in_order,
    replicated,
    scheduled,
    split_by_example,
)
from jaxnet.comm.vma import same_along
from jaxnet.cost.pieces import step_in_pieces
from jaxnet.cost.setting import batch_of, comm_state_of, gradients_of, params_of, updated
from jaxnet.cost.workloads import Params, Workload
from jaxnet.errors import InputError

PyTree = Any
Program = Callable[[PyTree, jax.Array], tuple[PyTree, PyTree]]

_EVERYWHERE = PartitionSpec()
_OWN = PartitionSpec(HOST, DEVICE)  # leads with [hosts, devices]
_BATCH = PartitionSpec(AXES)


class Task:
    """A compiled program `(state, batch) -> (state, other results)` that is called on its own state."""

    def __init__(self, program: Program, state: PyTree, batch: jax.Array) -> None:
        self.program = program
        self.state = state
        self.batch = batch

    def run(self, steps: int) -> None:
        """Call it `steps` times and wait once, at the end: as a training loop does, the next call is dispatched
        while the last still runs, and each waits for the one before through the state."""
        for _ in range(steps):
            self.state, _ = self.program(self.state, self.batch)
        jax.block_until_ready(self.state)


def order_of(workload: Workload) -> tuple[int, ...]:
    """Leaves in the order in which backward produces them."""
    return backward_order(jax.grad(workload.loss), workload.shapes, workload.examples(1))


def check_batch(workload: Workload, mesh: Mesh) -> None:
    """Refuse a batch that the devices of a host cannot share equally."""
    batch, devices = workload.sizes.batch, mesh.shape[DEVICE]
    if batch % devices:
        raise InputError(f"--batch {batch}: wanted a multiple of {devices}, the devices of a host, for equal shares")


def full_step(workload: Workload, strategy: Strategy, mesh: Mesh, *, pieces: bool = False) -> Task:
    """The step as `strategy` does it: one program, or several, launched from two threads."""
    order = order_of(workload)
    if pieces:
        return Task(*step_in_pieces(workload, strategy, mesh, order))
    reducer = scheduled(strategy, order)
    if reducer is None:
        return _partitioned(workload, mesh)
    if strategy.sharded is not None:
        return _deferred(workload, parts_in_order(order, strategy.sharded), mesh)
    return _replicated(workload, reducer, mesh)


def compute_only(workload: Workload, mesh: Mesh) -> Task:
    """The step without communication: each device updates with the sum of its own gradients alone."""
    return _replicated(workload, _NONE, mesh)


def communication_only(workload: Workload, strategy: Strategy, mesh: Mesh) -> Task:
    """The reduction alone, on gradients that are ready: packing, collectives, unpacking and the mean.

    The means are the next call's gradients, so that each call waits for the one before; they stay finite.
    """
    if strategy.reducer is None:
        return _reduced_by_xla(workload, mesh)
    return _reduced(workload, in_order(order_of(workload), strategy.reducer), mesh)


def partial_gradient(workload: Workload, leaves: Sequence[int], mesh: Mesh) -> Task:
    """Forward and as much of backward as the gradients of `leaves` need; forward alone if there are none."""

    def on_device(token: jax.Array, params: Params, x: jax.Array) -> tuple[jax.Array, PyTree]:
        params = lax.pcast(params, AXES, to="varying")
        loss, grads = jax.value_and_grad(workload.loss)(params, x)
        results = [loss, *(grads[leaf] for leaf in leaves)]
        # Calls wait for each other through the token: results of one program are ready together.
        return token + 1, [result[None, None] for result in results]

    params = params_of(workload, mesh)
    mapped = jax.shard_map(
        on_device, mesh=mesh, in_specs=(_EVERYWHERE, _EVERYWHERE, _BATCH), out_specs=(_EVERYWHERE, _OWN)
    )
    token, batch = jax.device_put(np.float32(0), replicated(mesh)), batch_of(workload, mesh)
    compiled = jax.jit(mapped, compiler_options=_options(mesh)).lower(token, params, batch).compile()
    return Task(lambda state, x: compiled(state, params, x), token, batch)


def _replicated(workload: Workload, reducer: Reducer, mesh: Mesh) -> Task:
    """Schedules 'during' and 'after': every device holds all parameters and updates all of them."""

    def on_device(state: PyTree, x: jax.Array) -> tuple[PyTree, tuple[()]]:
        params, comm = state
        grads = jax.grad(workload.loss)(lax.pcast(params, AXES, to="varying"), x)
        sums, comm = reducer.reduce(grads, _without_place(comm))
        return (updated(params, sums, mesh_size(mesh)), _with_place(comm)), ()

    state = (params_of(workload, mesh), comm_state_of(reducer, workload.shapes, mesh))
    specs = (_EVERYWHERE, _OWN)
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(specs, _BATCH), out_specs=(specs, _EVERYWHERE))
    return _task(jax.jit(mapped, donate_argnums=0, compiler_options=_options(mesh)), state, batch_of(workload, mesh))


def _deferred(workload: Workload, parts: Sharded, mesh: Mesh) -> Task:
    """Schedule 'deferred': a device holds and updates its part of the parameters, and gathers the others' for use."""
    shapes = workload.shapes

    def on_device(own: PyTree, x: jax.Array) -> tuple[PyTree, tuple[()]]:
        params = lax.pcast(parts.gather(own, shapes), AXES, to="varying")
        sums = parts.scatter(jax.grad(workload.loss)(params, x))
        return updated(own, sums, mesh_size(mesh)), ()

    place = PartitionSpec(parts.axes)
    split = jax.jit(jax.shard_map(parts.split, mesh=mesh, in_specs=_EVERYWHERE, out_specs=place))
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(place, _BATCH), out_specs=(place, _EVERYWHERE))
    state = split(params_of(workload, mesh))
    return _task(jax.jit(mapped, donate_argnums=0, compiler_options=_options(mesh)), state, batch_of(workload, mesh))


def _partitioned(workload: Workload, mesh: Mesh) -> Task:
    """No schedule of ours: one program over the global batch, which XLA partitions with its own defaults."""

    def step(params: Params, x: jax.Array) -> tuple[Params, tuple[()]]:
        return updated(params, jax.grad(workload.loss)(params, x), 1), ()

    return _task(_by_xla(step, replicated(mesh)), params_of(workload, mesh), batch_of(workload, mesh))


def _reduced(workload: Workload, reducer: Reducer, mesh: Mesh) -> Task:
    def on_device(state: PyTree, x: jax.Array) -> tuple[PyTree, tuple[()]]:
        grads, comm = _without_place(state)
        sums, comm = reducer.reduce(grads, comm)
        means = jax.tree.map(lambda total: total / mesh_size(mesh), sums)
        return _with_place((lax.pcast(means, AXES, to="varying"), comm)), ()

    state = (gradients_of(workload, mesh), comm_state_of(reducer, workload.shapes, mesh))
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(_OWN, _BATCH), out_specs=(_OWN, _EVERYWHERE))
    return _task(jax.jit(mapped, donate_argnums=0, compiler_options=_options(mesh)), state, batch_of(workload, mesh))


def _reduced_by_xla(workload: Workload, mesh: Mesh) -> Task:
    def step(grads: PyTree, x: jax.Array) -> tuple[PyTree, tuple[()]]:
        return jax.tree.map(lambda grad: jnp.broadcast_to(grad.mean((0, 1), keepdims=True), grad.shape), grads), ()

    return _task(_by_xla(step, one_per_device(mesh)), gradients_of(workload, mesh), batch_of(workload, mesh))


def _by_xla(step: Program, state: NamedSharding) -> jax.stages.Wrapped:
    mesh = state.mesh
    assert isinstance(mesh, Mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(state, split_by_example(mesh)),
        out_shardings=(state, replicated(mesh)),
    )


def _task(step: jax.stages.Wrapped, state: PyTree, batch: jax.Array) -> Task:
    return Task(step.lower(state, batch).compile(), state, batch)


def _same_everywhere(values: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
    return jax.tree.map(lambda value: same_along(value, AXES), values), state


# Not a sum, and not even the same on all devices: to leave communication out, and nothing else.
_NONE = Reducer(lambda shapes, axis_sizes: (), _same_everywhere, lambda shapes, axis_sizes: Plan(()))


def _without_place(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0, 0], tree)


def _with_place(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None, None], tree)


def _options(mesh: Mesh) -> dict[str, str | int | bool]:
    return compiler_options(mesh.devices.flat[0].platform)
