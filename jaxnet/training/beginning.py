"""Where a run begins: at its newest good checkpoint, or with a state made on the mesh."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxnet.checkpoints import Checkpointer, FaultTolerantCheckpoints, OneWriter, Replaceable, Restored
from jaxnet.comm import Reducer, one_per_device
from jaxnet.config.run import Config
from jaxnet.parallel.initial import initial_text
from jaxnet.parallel.state import TrainState, abstract_state, first_comm, stored_scale
from jaxnet.training.display import say_nothing, say_warning
from jaxnet.training.guard import GuardState
from jaxnet.training.place import ProcessGroup, other_decoder
from jaxnet.training.prepare import Experiment
from jaxnet.training.workdir import Fence

OWES_EVALUATION = "owes_evaluation"  # in what is saved with a state


class Beginning(NamedTuple):
    """Where a run begins.

    Attributes:
        state: as the step takes it.
        step: steps that are done.
        met: what the run has met in them.
        fresh: whether there was no checkpoint.
        owes_evaluation: whether that of the last step is still to be done, because a signal came with it.
        weights: the line that says which weights it begins with, if they are not random.
    """

    state: TrainState
    step: int
    met: GuardState
    fresh: bool
    owes_evaluation: bool = False
    weights: str = ""


def open_checkpoints(config: Config, workdir: Path, place: ProcessGroup, fence: Fence) -> FaultTolerantCheckpoints:
    """The run's checkpoints; with MPI, where no array spans the processes, those of rank 0."""
    directory, keep, ranks = workdir / "checkpoints", config.checkpoints.keep, place.cluster.mpi
    checkpoints: Checkpointer | OneWriter
    if ranks:
        checkpoints = OneWriter(directory, ranks, keep=keep, best="accuracy", fence=fence)
    else:
        checkpoints = Checkpointer(directory, keep=keep, best="accuracy", fence=fence)
    return FaultTolerantCheckpoints(checkpoints, say_warning if place.primary else say_nothing)


def begin(
    config: Config, experiment: Experiment, place: ProcessGroup, checkpoints: FaultTolerantCheckpoints
) -> Beginning:
    """Restore the newest good checkpoint, or make the first state."""
    restored = restore(experiment, checkpoints, say_warning if place.primary else say_nothing)
    if restored is None:
        path, state = config.initial_weights, experiment.first_state()
        weights = "" if path is None else initial_text(Path(path), experiment.variables)
        return Beginning(state, 0, GuardState(), True, weights=weights)
    if place.primary and (changed := other_decoder(config, restored.extra)):
        say_warning(changed)
    state = experiment.layout.cut(restored.state)
    owes_evaluation = bool(restored.extra.get(OWES_EVALUATION))
    return Beginning(state, restored.step, GuardState.saved(restored.extra), False, owes_evaluation)


def restore(
    experiment: Experiment,
    checkpoints: Checkpointer | FaultTolerantCheckpoints | OneWriter,
    say: Callable[[str], None],
    up_to: int | None = None,
) -> Restored | None:
    """The newest good checkpoint, of step `up_to` or before, as a whole state on the mesh; None where there is none.

    What a reducer remembers is each device's own. Where it was saved on other devices it is begun anew, and `say` takes
    the line that says so.
    """
    layout, reducer = experiment.layout, experiment.reducer
    shapes, mesh = layout.whole_shapes, layout.mesh

    def comm() -> dict[str, Any]:
        remembers = reducer if isinstance(reducer, Reducer) else None  # parts do not
        make = jax.jit(lambda: first_comm(remembers, shapes.params, mesh), out_shardings=one_per_device(mesh))
        return {"comm": make()}

    like, replaceable = abstract_state(shapes, mesh), Replaceable("comm/", comm)
    restored = checkpoints.restore_latest(like, up_to=up_to, defaults=stored_scale(), replaceable=replaceable)
    if restored is not None and restored.replaced:
        say(_lost(experiment, restored))
    return restored


def _lost(experiment: Experiment, restored: Restored) -> str:
    """The line that says what of the gradients will never be sent."""
    strategy = experiment.strategy.name
    before = restored.extra.get("config", {}).get("strategy", strategy)
    dims = next(iter(restored.replaced.values())).partition("[")[2]
    there = [int(size) for size in re.findall(r"\d+", dims)[:2]]
    return (
        f"the residuals of step {restored.step}, gradients that were not sent yet, are lost: they are those of "
        f"strategy={before} on {_devices(there)}, and the run goes on with strategy={strategy} on "
        f"{_devices(experiment.layout.mesh.shape.values())}"
    )


def _devices(mesh: Iterable[int]) -> str:
    sizes = list(mesh)
    count = math.prod(sizes)
    return f"{count} device{'s' * (count > 1)} (mesh {'x'.join(map(str, sizes))})"
