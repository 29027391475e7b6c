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
    UPDATE,
    Message,
    Plan,
    Reducer,
    Sharded,
    Strategy,
    backward_order,
    compiler_options,
    in_order,
    local_shards,
    lower_here,
    lower_launch,
    mesh_size,
    messages_of,
    one_per_device,
    replicated,
    same_along,
    scheduled,
    shards_in_order,
    split_by_example,
)
from jaxnet.cost.workloads import Params, Workload
from jaxnet.errors import InputError

# ---- What all timed steps share: the arrays that they start from, on the mesh, and their optimizer ----


PyTree = Any

LEARNING_RATE = 1e-3  # small: a thousand steps change little, so every round times the same numbers


def updated(params: Params, sums: Params, devices: int) -> Params:
    """SGD with the mean of `devices` gradients."""
    return jax.tree.map(lambda p, total: p - LEARNING_RATE * (total / devices), params, sums)


def params_of(workload: Workload, mesh: Mesh) -> Params:
    """Parameters, whole on every device."""
    return [placed(leaf, replicated(mesh)) for leaf in workload.initial()]


def gradients_of(workload: Workload, mesh: Mesh) -> PyTree:
    """Stand-ins, [hosts, devices, ...]: of the parameters' own size, so that a codec has something to encode."""
    sizes = (mesh.shape[HOST], mesh.shape[DEVICE])
    return [placed(np.broadcast_to(leaf, (*sizes, *leaf.shape)), one_per_device(mesh)) for leaf in workload.initial()]


def batch_of(workload: Workload, mesh: Mesh) -> jax.Array:
    """Examples of all hosts."""
    shape = (workload.sizes.batch * mesh.shape[HOST], *workload.sizes.example)
    return placed(np.random.default_rng(1).standard_normal(shape, np.float32), split_by_example(mesh))


def comm_state_of(reducer: Reducer, shapes: PyTree, mesh: Mesh) -> PyTree:
    """The state of a reducer of values of these shapes, [hosts, devices, ...]."""
    sizes = (mesh.shape[HOST], mesh.shape[DEVICE])
    state = jax.tree.map(np.asarray, reducer.init(shapes, mesh.shape))
    return jax.tree.map(lambda leaf: placed(np.broadcast_to(leaf, (*sizes, *leaf.shape)), one_per_device(mesh)), state)


def placed(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array on the mesh, of which every process has the whole in memory."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


# ---- The step as several programs, launched from two threads, to be timed beside the same step as one -


class PiecesStep:
    """`step((params, comm), x) -> ((params, comm), ())` on the one device of each process; `params` are donated."""

    def __init__(
        self, workload: Workload, reducer: Reducer, mesh: Mesh, order: Sequence[int], *, at_once: bool
    ) -> None:
        messages = messages_of(reducer, workload.shapes, mesh.shape, order)

        def gradients(params: Params, x: jax.Array) -> list[jax.Array]:
            return messages.pack(jax.grad(workload.loss)(params, x))

        def update(params: Params, sums: list[jax.Array]) -> Params:
            return updated(params, messages.unpack(sums), mesh_size(mesh))

        shapes = (workload.shapes, workload.examples(workload.sizes.batch // mesh.shape[DEVICE]))
        summed = [Message(messages.reducer, spec) for spec in messages.specs]
        self._launch = lower_launch(gradients, shapes, summed, mesh, at_once=at_once).compile()
        self._update = lower_here(UPDATE, update, (workload.shapes, messages.specs), mesh, donate=(0,)).compile()

    def __call__(self, state: PyTree, x: jax.Array) -> tuple[PyTree, tuple[()]]:
        params, comm = state
        sums, comm = self._launch((params, x), comm)
        return (self._update(params, sums), comm), ()

    def as_text(self) -> str:
        """All programs but the update."""
        return self._launch.as_text()


def step_in_pieces(
    workload: Workload, strategy: Strategy, mesh: Mesh, order: Sequence[int]
) -> tuple[PiecesStep, PyTree, jax.Array]:
    """The step, the state that it starts from, and a batch; InputError where there is no such step."""
    reducer, asked = strategy.reducer, f"--strategy {strategy.name}+pieces"
    if reducer is None or reducer.message is None or strategy.schedule not in ("during", "after"):
        raise InputError(f"{asked}: this strategy does not sum gradients message by message; leave +pieces out")
    if len(mesh.local_devices) != 1:
        raise InputError(
            f"{asked}: wanted one device a process, got {len(mesh.local_devices)}; start a process for each, as in "
            "jaxnet launch local --processes 2 -- jaxnet bench ..."
        )
    step = PiecesStep(workload, reducer, mesh, order, at_once=strategy.schedule == "after")
    comm = comm_state_of(in_order(order, reducer), workload.shapes, mesh)
    return step, (local_shards(params_of(workload, mesh)), comm), local_shards(batch_of(workload, mesh))


Program = Callable[[PyTree, jax.Array], tuple[PyTree, PyTree]]

_EVERYWHERE = PartitionSpec()
_OWN = PartitionSpec(HOST, DEVICE)  # leads with [hosts, devices]
_BATCH = PartitionSpec(AXES)


class TimedProgram:
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


def full_step(workload: Workload, strategy: Strategy, mesh: Mesh, *, pieces: bool = False) -> TimedProgram:
    """The step as `strategy` does it: one program, or several, launched from two threads."""
    order = order_of(workload)
    if pieces:
        return TimedProgram(*step_in_pieces(workload, strategy, mesh, order))
    reducer = scheduled(strategy, order)
    if reducer is None:
        return _partitioned(workload, mesh)
    if strategy.sharded is not None:
        return _deferred(workload, shards_in_order(order, strategy.sharded), mesh)
    return _replicated(workload, reducer, mesh)


def compute_only(workload: Workload, mesh: Mesh) -> TimedProgram:
    """The step without communication: each device updates with the sum of its own gradients alone."""
    return _replicated(workload, _NONE, mesh)


def communication_only(workload: Workload, strategy: Strategy, mesh: Mesh) -> TimedProgram:
    """The reduction alone, on gradients that are ready: packing, collectives, unpacking and the mean.

    The means are the next call's gradients, so that each call waits for the one before; they stay finite.
    """
    if strategy.reducer is None:
        return _reduced_by_xla(workload, mesh)
    return _reduced(workload, in_order(order_of(workload), strategy.reducer), mesh)


def partial_gradient(workload: Workload, leaves: Sequence[int], mesh: Mesh) -> TimedProgram:
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
    return TimedProgram(lambda state, x: compiled(state, params, x), token, batch)


def _replicated(workload: Workload, reducer: Reducer, mesh: Mesh) -> TimedProgram:
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


def _deferred(workload: Workload, parts: Sharded, mesh: Mesh) -> TimedProgram:
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


def _partitioned(workload: Workload, mesh: Mesh) -> TimedProgram:
    """No schedule of ours: one program over the global batch, which XLA partitions with its own defaults."""

    def step(params: Params, x: jax.Array) -> tuple[Params, tuple[()]]:
        return updated(params, jax.grad(workload.loss)(params, x), 1), ()

    return _task(_by_xla(step, replicated(mesh)), params_of(workload, mesh), batch_of(workload, mesh))


def _reduced(workload: Workload, reducer: Reducer, mesh: Mesh) -> TimedProgram:
    def on_device(state: PyTree, x: jax.Array) -> tuple[PyTree, tuple[()]]:
        grads, comm = _without_place(state)
        sums, comm = reducer.reduce(grads, comm)
        means = jax.tree.map(lambda total: total / mesh_size(mesh), sums)
        return _with_place((lax.pcast(means, AXES, to="varying"), comm)), ()

    state = (gradients_of(workload, mesh), comm_state_of(reducer, workload.shapes, mesh))
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(_OWN, _BATCH), out_specs=(_OWN, _EVERYWHERE))
    return _task(jax.jit(mapped, donate_argnums=0, compiler_options=_options(mesh)), state, batch_of(workload, mesh))


def _reduced_by_xla(workload: Workload, mesh: Mesh) -> TimedProgram:
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


def _task(step: jax.stages.Wrapped, state: PyTree, batch: jax.Array) -> TimedProgram:
    return TimedProgram(step.lower(state, batch).compile(), state, batch)


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
