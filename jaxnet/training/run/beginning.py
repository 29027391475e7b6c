"""Where a run begins: at its newest good checkpoint, or with a state made on the mesh."""

from pathlib import Path
from typing import NamedTuple

from jaxnet.checkpoints import Checkpoints, Enduring, OneWriter
from jaxnet.training.config import Config
from jaxnet.training.experiment import Experiment
from jaxnet.training.run.place import Place
from jaxnet.training.run.progress import say_nothing, say_warning
from jaxnet.training.run.watch import Counts
from jaxnet.training.run.workdir import Fence
from jaxnet.training.settings.fingerprint import other_decoder
from jaxnet.training.steps.loss_scale import stored_scale
from jaxnet.training.steps.state import TrainState, abstract_state


class Beginning(NamedTuple):
    """Where a run begins.

    Attributes:
        state: as the step takes it.
        step: steps that are done.
        met: what the run has met in them.
        fresh: whether there was no checkpoint.
    """

    state: TrainState
    step: int
    met: Counts
    fresh: bool


def open_checkpoints(config: Config, workdir: Path, place: Place, fence: Fence) -> Enduring:
    """The run's checkpoints; with MPI, where no array spans the processes, those of rank 0."""
    directory, keep, ranks = workdir / "checkpoints", config.checkpoints.keep, place.cluster.ranks
    checkpoints: Checkpoints | OneWriter
    if ranks:
        checkpoints = OneWriter(directory, ranks, keep=keep, best="accuracy", fence=fence)
    else:
        checkpoints = Checkpoints(directory, keep=keep, best="accuracy", fence=fence)
    return Enduring(checkpoints, say_warning if place.primary else say_nothing)


def begin(config: Config, experiment: Experiment, place: Place, checkpoints: Enduring) -> Beginning:
    """Restore the newest good checkpoint, or make the first state."""
    like = abstract_state(experiment.layout.whole_shapes, place.mesh)
    restored = checkpoints.restore_latest(like, defaults=stored_scale())
    if restored is None:
        return Beginning(experiment.first_state(), 0, Counts(), True)
    if place.primary and (changed := other_decoder(config, restored.extra)):
        say_warning(changed)
    state = experiment.layout.cut(restored.state)
    return Beginning(state, restored.step, Counts.saved(restored.extra), False)
