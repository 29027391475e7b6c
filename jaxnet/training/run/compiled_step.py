"""The training step, compiled once for each size of images, and checked against its plan."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxnet.comm import Check, verify
from jaxnet.comm.pieces.launch import HasText
from jaxnet.training.experiment import Experiment
from jaxnet.training.run.ledger import Ledger
from jaxnet.training.run.place import Place
from jaxnet.training.steps.resolutions import step_by_size
from jaxnet.training.steps.state import TrainState


class CompiledStep(NamedTuple):
    """The step.

    Attributes:
        run: `(state, batch) -> (state, metrics)`.
        check: what was found beside what was planned.
        given: to the compiler.
        made: by the compiler.
    """

    run: Callable[[TrainState, Any], Any]
    check: Check
    given: HasText
    made: HasText


def compile_step(experiment: Experiment, state: TrainState, place: Place, ledger: Ledger) -> CompiledStep:
    """Compile it for `state` and the run's batches."""
    given = experiment.step.lower(state, experiment.batch_shapes)
    with ledger.during("compile"):
        made = given.compile()
    check = verify(made.as_text() or "", experiment.planned, place.mesh.shape)
    by_size = step_by_size(experiment.step, state, experiment.batch_shapes, experiment.phases, made)
    # From its second call on, JAX runs a `Compiled` without the tokens that keep MPI's calls in order.
    return CompiledStep(experiment.step if place.cluster.ranks else by_size, check, given, made)
