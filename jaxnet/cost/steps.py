"""Training steps to be timed: the trainer's own, and the same without one of their halves.

A step is forward, backward, reduction, mean and update in one program (or several, in pieces), the state donated.
"""

import time
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
    all_reduce,
    as_reducer,
    bucketed,
    compiler_options,
    in_order,
    mesh_size,
    one_per_device,
    platform_of,
    replicated,
    same_along,
    split_by_example,
    stateless,
    varying_along,
)
from jaxnet.cost.workloads import PreparedStep, Workload
from jaxnet.errors import InputError
from jaxnet.parallel import Mode
from jaxnet.parallel.device_step import example_keys, value_and_gradient
from jaxnet.parallel.layout import OWN
from jaxnet.parallel.pieces import crosses_steps, sums_by_message
from jaxnet.parallel.state import first_comm

PyTree = Any
Program = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]

_EVERYWHERE = PartitionSpec()
_BATCH = PartitionSpec(AXES)
_AT_ONCE = 16  # calls in flight: of 32, XLA:CPU's threads wait for each other for ever


class TimedProgram:
    """A compiled program `(state, batch) -> (state, other results)` that is called on its own state.

    Attributes:
        crosses: whether a call's messages travel beside the next call, as those of `priority` do.
        calls: how many there were.
    """

    def __init__(self, program: Program, state: PyTree, batch: PyTree, crosses: bool = False) -> None:
        self.program = program
        self.state = state
        self.batch = batch
        self.crosses = crosses
        self.calls = 0

    def run(self, steps: int) -> None:
        """Call it `steps` times and wait at the end, and after every 16: as a training loop does, the next call is
        dispatched while the last still runs, and each waits for the one before through the state."""
        self._call(steps)
        jax.block_until_ready(self.state)

    def seconds(self, steps: int) -> float:
        """What `steps` calls take in all, behind one more that is not timed.

        The first call after another program or a pause is no usual one: a sum of 34 MB took up to 300 ms longer at
        1 Gbit/s. Where messages cross the end of a call, the first has none beside it, and those of the last have no
        call beside them: the time is from metrics to metrics.
        """
        first = self._call(1)
        jax.block_until_ready(first if self.crosses else self.state)
        started = time.perf_counter()
        last = self._call(steps)
        jax.block_until_ready(last if self.crosses else self.state)
        ended = time.perf_counter()
        jax.block_until_ready(self.state)
        return ended - started

    def _call(self, steps: int) -> PyTree:
        """Call it `steps` times; the other results of the last call, which may not be ready."""
        other: PyTree = ()
        for index in range(steps):
            if index % _AT_ONCE == 0:
                jax.block_until_ready(other if self.crosses else self.state)
            self.state, other = self.program(self.state, self.batch)
        self.calls += steps
        return other


def full_step(workload: Workload, strategy: Strategy, *, pieces: bool = False) -> TimedProgram:
    """The step as the trainer runs it under `strategy`: one program or, on demand or where it must be, several.

    Raises:
        InputError: there is no such step in pieces.
    """
    if pieces:
        check_pieces(strategy, workload.mesh)
    mode = mode_of(strategy, workload.mesh, pieces=pieces)
    return _compiled(workload, workload.prepare(strategy, mode, all_reduce), crosses_steps(strategy, workload.mesh))


def mode_of(strategy: Strategy, mesh: Mesh, *, pieces: bool = False) -> Mode:
    """The mode of a step that is timed: several programs on demand, or where messages cross its end."""
    if pieces or crosses_steps(strategy, mesh):
        return "pieces"
    return "jit" if strategy.kind == "xla" else "shard_map"


def check_pieces(strategy: Strategy, mesh: Mesh) -> None:
    """Refuse a step in pieces where there is none."""
    asked = f"--strategy {strategy.label}+pieces"
    if not sums_by_message(strategy):
        raise InputError(f"{asked}: this strategy does not sum gradients message by message; leave +pieces out")
    if len(mesh.local_devices) != 1:
        raise InputError(
            f"{asked}: wanted one device a process, got {len(mesh.local_devices)}; start a process for each, as in "
            "jaxnet launch local --processes 2 -- jaxnet bench ..."
        )


def compute_only(workload: Workload) -> TimedProgram:
    """The step without communication: each device updates with the sum of its own gradients alone."""
    alone = Strategy(bucketed(_no_sum(*AXES), bucket_bytes=None))
    return _compiled(workload, workload.prepare(alone, "shard_map", _no_sum))


def _compiled(workload: Workload, prepared: PreparedStep, crosses: bool = False) -> TimedProgram:
    state = prepared.init()
    step = prepared.step.lower(state, workload.global_batch).compile()
    return TimedProgram(step, state, workload.global_batch, crosses)


def _no_sum(*axes: str) -> Reducer:
    """Not a sum, and not even the same on all devices: leaves communication out of a step, and nothing else."""
    return stateless(lambda message: same_along(message, axes), lambda shapes, axis_sizes: Plan(()))


def communication_only(workload: Workload, strategy: Strategy) -> TimedProgram:
    """The reduction alone, on gradients that are ready: packing, collectives, unpacking and the mean.

    The means are the next call's gradients, so that each call waits for the one before; they stay finite.
    """
    if strategy.reducer is None:
        return _reduced_by_xla(workload)
    reducer = as_reducer(strategy.reducer) if isinstance(strategy.reducer, Sharded) else strategy.reducer
    return _reduced(workload, in_order(workload.order, reducer))


def packing_only(workload: Workload) -> TimedProgram:
    """Packing and unpacking alone: all gradients become one message, which goes nowhere, and gradients again."""

    def untouched(message: jax.Array) -> jax.Array:
        return lax.optimization_barrier(same_along(message, AXES))  # without it XLA leaves both out

    still = stateless(untouched, lambda shapes, axis_sizes: Plan(()))
    return _reduced(workload, in_order(workload.order, bucketed(still, bucket_bytes=None)))


def partial_gradient(workload: Workload, leaves: Sequence[int]) -> TimedProgram:
    """Forward and as much of backward as the gradients of `leaves` need; forward alone if there are none."""
    mesh = workload.mesh
    state = workload.first_state
    given = (state.params, state.stats, state.key)

    def on_device(token: jax.Array, given: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        params, stats, key = given
        keys = example_keys(key, jnp.int32(0), batch["id"])
        params = lax.pcast(params, AXES, to="varying")
        (loss, _), grads = value_and_gradient(workload.loss_fn)(params, stats, batch, keys)
        all_grads = jax.tree.leaves(grads)
        results = [loss, *(all_grads[leaf] for leaf in leaves)]
        # Calls wait for each other through the token: results of one program are ready together.
        return token + 1, [varying_along(result, AXES)[None, None] for result in results]

    mapped = jax.shard_map(
        on_device, mesh=mesh, in_specs=(_EVERYWHERE, _EVERYWHERE, _BATCH), out_specs=(_EVERYWHERE, OWN)
    )
    token = jax.device_put(np.float32(0), replicated(mesh))
    compiled = jax.jit(mapped, compiler_options=_options(mesh)).lower(token, given, workload.global_batch).compile()
    return TimedProgram(lambda token, batch: compiled(token, given, batch), token, workload.global_batch)


def _reduced(workload: Workload, reducer: Reducer) -> TimedProgram:
    mesh = workload.mesh

    def on_device(state: PyTree, batch: PyTree) -> tuple[PyTree, tuple[()]]:
        del batch
        grads, comm = jax.tree.map(lambda leaf: leaf[0, 0], state)
        sums, comm = reducer.reduce(grads, comm)
        means = jax.tree.map(lambda total: varying_along(total / mesh_size(mesh), AXES), sums)
        return jax.tree.map(lambda leaf: leaf[None, None], (means, comm)), ()

    make = jax.jit(lambda: first_comm(reducer, workload.params, mesh), out_shardings=one_per_device(mesh))
    state = (_gradients(workload), make())
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(OWN, _BATCH), out_specs=(OWN, _EVERYWHERE))
    step = jax.jit(mapped, donate_argnums=0, compiler_options=_options(mesh))
    return TimedProgram(step.lower(state, workload.global_batch).compile(), state, workload.global_batch)


def _reduced_by_xla(workload: Workload) -> TimedProgram:
    mesh, state = workload.mesh, _gradients(workload)

    def step(grads: PyTree, batch: PyTree) -> tuple[PyTree, tuple[()]]:
        del batch
        return jax.tree.map(lambda grad: jnp.broadcast_to(grad.mean((0, 1), keepdims=True), grad.shape), grads), ()

    own: NamedSharding = one_per_device(mesh)
    jitted = jax.jit(
        step, donate_argnums=0, in_shardings=(own, split_by_example(mesh)), out_shardings=(own, replicated(mesh))
    )
    return TimedProgram(jitted.lower(state, workload.global_batch).compile(), state, workload.global_batch)


def _gradients(workload: Workload) -> PyTree:
    """Stand-ins, [hosts, devices, ...]: of the parameters' own size, so that a codec has something to encode."""
    mesh = workload.mesh
    params = workload.first_state.params
    sizes = (mesh.shape[HOST], mesh.shape[DEVICE])
    spread = lambda tree: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*sizes, *leaf.shape)), tree)  # noqa: E731
    gradients: PyTree = jax.jit(spread, out_shardings=one_per_device(mesh))(params)
    return gradients


def _options(mesh: Mesh) -> dict[str, str | int | bool]:
    return compiler_options(platform_of(mesh))
