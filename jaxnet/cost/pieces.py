"""The step as several programs, launched from two threads, to be timed beside the same step as one."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxnet.comm import DEVICE, Reducer, Strategy, in_order, mesh_size
from jaxnet.comm.pieces.launch import UPDATE, Summed, here, lower_here, lower_launch
from jaxnet.comm.pieces.messages import messages_of
from jaxnet.cost.setting import batch_of, comm_state_of, params_of, updated
from jaxnet.cost.workloads import Params, Workload
from jaxnet.errors import InputError

PyTree = Any


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
        summed = [Summed(messages.reducer, spec) for spec in messages.specs]
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
    return step, (here(params_of(workload, mesh)), comm), here(batch_of(workload, mesh))
