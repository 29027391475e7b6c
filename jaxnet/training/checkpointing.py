"""Where a run begins, and what it saves: at its newest good checkpoint, or with a state made on the mesh."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxnet.checkpoints import (
    Checkpointer,
    FaultTolerantCheckpoints,
    JaxProcesses,
    MPIProcesses,
    OneWriter,
    Replaceable,
    Restored,
)
from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.checkpoints.leaves import described, named_leaves
from jaxnet.comm import one_per_device
from jaxnet.config.keys import flatten
from jaxnet.config.run import Config
from jaxnet.data import Inputs, has_classes, inputs_of
from jaxnet.errors import InputError, shown
from jaxnet.object_storage.store import remote_url
from jaxnet.parallel.state import TrainState, abstract_state, first_comm, stored_scale
from jaxnet.training.best import BestEvaluation
from jaxnet.training.display import say_nothing, say_warning
from jaxnet.training.experiment import Experiment
from jaxnet.training.guard import GuardState
from jaxnet.training.initial import initial_text
from jaxnet.training.ledger import Ledger
from jaxnet.training.observer import Observer
from jaxnet.training.processes import ProcessGroup, decoder, other_decoder
from jaxnet.training.workdir import Workdir

_BEST = "best_evaluation"  # in what is saved with a state
_OWES_EVALUATION = "owes_evaluation"  # likewise
_INPUTS = "inputs"  # likewise, and read by whoever uses the network
_EXAMPLES = "examples"  # likewise, of training and those held out of it
_CHOSEN = "best_chosen"  # likewise, how the best evaluation is chosen


class Start(NamedTuple):
    """Where a run begins.

    Attributes:
        state: as the step takes it.
        step: steps that are done.
        guard: what the guard has counted in them.
        fresh: whether there was no checkpoint.
        owes_evaluation: whether that of the last step is still to be done, because a signal came with it.
        best: what is saved of the best evaluation in them; None: there was none.
        weights: the line that says which weights it begins with, if they are not random.
    """

    state: TrainState
    step: int
    guard: GuardState
    fresh: bool
    owes_evaluation: bool = False
    best: dict[str, Any] | None = None
    weights: str = ""


def open_checkpoints(experiment: Experiment, workdir: Workdir) -> FaultTolerantCheckpoints:
    """The run's checkpoints: written by process 0 alone with MPI, and where the processes share no directory."""
    processes, directory = experiment.processes, workdir.path / "checkpoints"
    kept: Any = {"keep": experiment.config.checkpoints.keep, "fence": workdir.fence}
    ranks, several = processes.cluster.mpi, processes.cluster.process_count > 1
    checkpoints: Checkpointer | OneWriter
    if ranks or (several and workdir.mirror):
        talk = MPIProcesses(ranks) if ranks else JaxProcesses()
        checkpoints = OneWriter(directory, talk, shared=not workdir.mirror, **kept)
    else:
        checkpoints = Checkpointer(directory, **kept)
    return FaultTolerantCheckpoints(checkpoints, _say(processes))


def begins_anew(workdir: str | Path) -> bool:
    """Whether there is no checkpoint to continue from, as far as this machine knows: object storage is not asked."""
    directory = Path(workdir) / "checkpoints"
    if remote_url(workdir) is not None:
        return False
    try:
        return not (directory.is_dir() and CheckpointFiles(directory).steps())
    except OSError:  # such as a name that is too long; told when the workdir is made
        return True


def _say(processes: ProcessGroup) -> Callable[[str], None]:
    return say_warning if processes.primary else say_nothing


def newest(experiment: Experiment, checkpoints: FaultTolerantCheckpoints) -> Restored | None:
    """The newest good checkpoint as a whole state on the mesh; None where there is none."""
    return restore(experiment, checkpoints, _say(experiment.processes))


def start(experiment: Experiment, restored: Restored | None) -> Start:
    """Begin with what was restored, or make the first state.

    Raises:
        InputError: the data set has other classes than that of which the run learned its labels.
    """
    config = experiment.config
    if restored is None:
        path, state = config.initial_weights, experiment.init()
        weights = "" if path is None else initial_text(Path(path), experiment.variables)
        return Start(state, 0, GuardState(), True, weights=weights)
    require_same_classes(experiment.tests, restored)
    chosen_anew = _other_choice(experiment, restored)
    changes = [
        other_decoder(config, restored.extra),
        _other_batch_size(config, restored),
        _other_examples(experiment, restored),
        chosen_anew,
    ]
    for changed in filter(None, changes):
        _say(experiment.processes)(changed)
    state = experiment.layout.cut(restored.state)
    owes_evaluation = bool(restored.extra.get(_OWES_EVALUATION))
    best = None if chosen_anew else restored.extra.get(_BEST)  # an older version saved none
    return Start(state, restored.step, GuardState.saved(restored.extra), False, owes_evaluation, best)


def require_same_classes(source: Any, restored: Restored) -> None:
    """Refuse classes with other names, or in another order, than those whose labels the run has learned."""
    if _INPUTS not in restored.extra or not has_classes(source):
        return
    before, now = Inputs.from_json(restored.extra[_INPUTS]).class_names, inputs_of(source).class_names
    if before and now and before != now:
        label = next((at for at, pair in enumerate(zip(before, now, strict=False)) if len({*pair}) > 1), None)
        what = "" if label is None else f" (label {label} was {shown(before[label])} and is {shown(now[label])})"
        raise InputError(
            f"the data set has {len(now)} classes, other than the {len(before)} of which step {restored.step} was "
            f"trained{what}: give them their names and number back, or train in another workdir"
        )


def _other_examples(experiment: Experiment, restored: Restored) -> str | None:
    """The line that says that the data set has grown or shrunk."""
    before, now = restored.extra.get(_EXAMPLES), _examples(experiment)
    if before in (None, now):  # an older version did not save it
        return None
    held = "; what is held back for validation is drawn anew, of what the run was trained on too"
    return (
        f"the data set had {before:,} examples when step {restored.step} was saved and has {now:,}: from here on "
        f"batches are of those it has{held if experiment.held_out else ''}"
    )


def _other_batch_size(config: Config, restored: Restored) -> str | None:
    """The line that says that steps do not tell any more how many examples the run has seen."""
    before, now = restored.extra.get("config", {}).get("batch_size"), config.batch_size
    if before in (None, now):
        return None
    return (
        f"batch_size was {before} when step {restored.step} was saved and is {now}: steps are counted on, so the "
        f"epochs and the order of examples are those of a run that had {now} from its first step"
    )


def _other_choice(experiment: Experiment, restored: Restored) -> str | None:
    """The line that says that the best state is chosen by another metric or on other examples."""
    before, now = restored.extra.get(_CHOSEN), _chosen(experiment)
    if before in (None, now) or not now:  # an older version did not save it
        return None
    was = f"; until step {restored.step} it was {before}" if before else ""
    moved = restored.extra.get("config", {}).get("validation") != experiment.config.validation
    held = "; the run may have been trained on what is held back now" if moved and experiment.held_out else ""
    return f"from here on the best state is chosen {now}{was}{held}"


def _chosen(experiment: Experiment) -> str:
    """How the best state of a run is chosen, in words; '' where none is."""
    task, validation = experiment.config.task, experiment.config.validation
    if validation is None:
        return ""
    of = f" of {_examples(experiment):,} examples" if experiment.held_out else ""
    return f"by the {'largest' if task.best_mode == 'max' else 'least'} {task.best} on validation={validation}{of}"


def _examples(experiment: Experiment) -> int:
    held = experiment.held_out
    return int(experiment.source.num_examples + (held.num_examples if held else 0))


def restore(
    experiment: Experiment,
    checkpoints: Checkpointer | FaultTolerantCheckpoints | OneWriter,
    say: Callable[[str], None],
    up_to: int | None = None,
) -> Restored | None:
    """The newest good checkpoint, of step `up_to` or before, as a whole state on the mesh; None where there is none.

    What a reducer remembers is each device's own. Where it was saved on other devices, or by another strategy, it is
    begun anew, and `say` takes the line that says so.
    """
    shapes, mesh = experiment.layout.whole_shapes, experiment.mesh
    strategy = flatten(experiment.config)["strategy"]

    def comm() -> dict[str, Any]:
        reducer = experiment.form.reducer(shapes.params)
        make = jax.jit(lambda: first_comm(reducer, shapes.params, mesh), out_shardings=one_per_device(mesh))
        return {"comm": make()}

    def same(extra: Mapping[str, Any]) -> bool:
        return bool(extra.get("config", {}).get("strategy", strategy) == strategy)

    like, replaceable = abstract_state(shapes, mesh), Replaceable("comm/", comm, same)
    restored = checkpoints.restore_latest(like, up_to=up_to, defaults=stored_scale(), replaceable=replaceable)
    if restored is not None and restored.replaced:
        say(_lost(experiment, restored))
    return restored


def _lost(experiment: Experiment, restored: Restored) -> str:
    """The line that says what of the gradients will never be sent."""
    saved = restored.extra.get("config", {})
    now = {"strategy": experiment.strategy.label, "bucket_bytes": experiment.config.bucket_bytes}
    before = {key: saved.get(key, value) for key, value in now.items()}
    if before["bucket_bytes"] == now["bucket_bytes"]:
        del before["bucket_bytes"], now["bucket_bytes"]
    dims = next(iter(restored.replaced.values())).partition("[")[2]
    there = [int(size) for size in re.findall(r"\d+", dims)[:2]]
    return (
        f"the residuals of step {restored.step}, gradients that were not sent yet, are lost: they are those of "
        f"{_keys_text(before)} on {_devices(there)}, and the run goes on with {_keys_text(now)} on "
        f"{_devices(experiment.layout.mesh.shape.values())}"
    )


def _keys_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={'none' if value is None else value}" for key, value in values.items())


def _devices(mesh: Iterable[int]) -> str:
    sizes = list(mesh)
    count = math.prod(sizes)
    return f"{count} device{'s' * (count > 1)} (mesh {'x'.join(map(str, sizes))})"


class Saver(Observer):
    """Saves states of a run, each with what whoever uses it later must know. At the end it waits for the disk.

    Args:
        experiment: of the run.
        checkpoints: where states go.
        inputs: the images and classes of the data set; None: it has other things, whose shapes are saved.
        guard: what the guard has counted so far.
        best: the best evaluation so far.
        ledger: what of the run's time is spent on it.
    """

    def __init__(
        self,
        experiment: Experiment,
        checkpoints: FaultTolerantCheckpoints,
        inputs: Inputs | None,
        guard: Callable[[], GuardState],
        best: BestEvaluation,
        ledger: Ledger,
    ) -> None:
        self._experiment, self._checkpoints, self._guard, self._ledger = experiment, checkpoints, guard, ledger
        self._best = best
        config = experiment.config
        saved = {"config": flatten(config), _EXAMPLES: _examples(experiment), _CHOSEN: _chosen(experiment)}
        self._constant = {**saved, **decoder(config)}
        if inputs is not None:
            self._constant[_INPUTS] = inputs.as_json()
        else:
            self._constant["example"] = described(named_leaves(config.task.asked_shapes(experiment.example)))

    def save(self, state: TrainState, step: int, owed: bool) -> None:
        """Write a checkpoint in the background; `owed`: the evaluation of this step is still to be made."""
        said = {"next_step": step, "guard": self._guard().to_save(), _OWES_EVALUATION: owed}
        extra = {**self._constant, **said, _BEST: self._best.to_save()}
        self._checkpoints.save(step, self._experiment.layout.whole(state), extra=extra, best=self._best.step)

    def on_end(self, step: int) -> None:
        """Wait until all is written."""
        with self._ledger.during("checkpoint"):
            self._checkpoints.wait()


@contextlib.contextmanager
def written_on_error(
    checkpoints: FaultTolerantCheckpoints, processes: ProcessGroup, begins: Callable[[str], None]
) -> Iterator[None]:
    """When an exception leaves, wait for what is being saved before the workdir is given back.

    Only where this process is alone: others might never write their part, and all would wait for it. `begins` takes
    what is done then, in words.
    """
    try:
        yield
    except BaseException:
        if processes.cluster.process_count == 1:
            begins("a checkpoint")
            with contextlib.suppress(Exception):  # the one that leaves says what went wrong first
                checkpoints.wait()
        raise
