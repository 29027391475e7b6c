"""What a strategy hides and what it exposes: a whole step beside its compute, its communication and its bound."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from jaxnet.comm import Averaging, Strategy, named_strategy
from jaxnet.cost.bounds import Compute, Footprint, footprint
from jaxnet.cost.collectives import link_peak
from jaxnet.cost.rounds import interleave, wait_for_all
from jaxnet.cost.shapes import byte_size
from jaxnet.cost.steps import TimedProgram, communication_only, compute_only, full_step, partial_gradient
from jaxnet.cost.workloads import Workload
from jaxnet.errors import InputError

# ---- Strategies as a benchmark names them, so that one can stand in a table at several bucket sizes ---


_PIECES = "+pieces"


def in_pieces(label: str) -> bool:
    """Whether the step is to be several programs, launched from two threads.

    >>> in_pieces("ddp:4MiB+pieces"), in_pieces("ddp:4MiB")
    (True, False)
    """
    return label.endswith(_PIECES)


def labelled_strategy(label: str, bucket_bytes: int | None = None, platform: str = "cpu") -> Strategy:
    """The strategy `NAME`, or `NAME:BYTES` with buckets of that size; `+pieces` may stand behind, see `in_pieces`.

    Settings stand between: `NAME:key=value:BYTES`.

    Args:
        label: what the user wrote.
        bucket_bytes: for a `NAME` alone, if that strategy has buckets of a set size.
        platform: 'cpu', 'gpu' or 'tpu': where it will run.

    >>> labelled_strategy("hierarchical:4MiB").name
    'hierarchical'
    """
    name, size = name_and_size(label)
    try:
        own = named_strategy(name, byte_size(size) if size else None, platform=platform)
    except ValueError as error:
        raise InputError(f"--strategy {label}: {error}") from None
    if isinstance(own.schedule, Averaging):
        raise InputError(
            f"--strategy {label}: its steps are not alike, parameters travel in every {own.schedule.every}th; time "
            "single steps of another strategy, and whole runs of this one with train.py"
        )
    if size or bucket_bytes is None:
        return own
    try:
        return named_strategy(name, bucket_bytes, platform=platform)
    except ValueError:  # it has no bucket size to set
        return own


def name_and_size(label: str) -> tuple[str, str]:
    """The name with its settings, and the size of buckets, which is no `key=value`; empty if there is none.

    >>> name_and_size("ddp:4MiB+pieces"), name_and_size("top_k:fraction=0.1")
    (('ddp', '4MiB'), ('top_k:fraction=0.1', ''))
    """
    strategy = label.removesuffix(_PIECES)
    name, colon, last = strategy.rpartition(":")
    return (name, last) if colon and "=" not in last else (strategy, "")


# ---- The profiler's trace of a few steps of each strategy, which `jaxnet timeline` reads and draws ----


_STEPS = 3  # one of them is shown: that of median length


def check_trace(directory: Path) -> None:
    """Refuse, before anything is measured, a directory that cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--trace {directory}: cannot be made a directory: {error.strerror}") from None


def trace_directory(directory: Path, label: str) -> Path:
    """Where the trace of a strategy lies, under a name that no tool takes for a remote path or a pattern.

    >>> trace_directory(Path("traces"), "ddp:4MiB+pieces").as_posix()
    'traces/ddp_4MiB+pieces'
    """
    return directory / re.sub(r"[^\w.+-]", "_", label)


def trace_steps(tasks: Mapping[str, TimedProgram], directory: Path) -> None:
    """Trace each task, by label, into its own directory; every process calls it with tasks of the same labels.

    Tasks have run before, so that the trace holds no first calls. Python's own calls are left out: they cost time.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    for label, task in tasks.items():
        into = trace_directory(directory, label) / f"process_{jax.process_index()}"
        with jax.profiler.trace(str(into), profiler_options=options):
            wait_for_all()
            task.run(_STEPS)


_Key = tuple[str, str]
_COMPUTE, _GRADIENTS, _FORWARD = (("", part) for part in ("compute", "gradients", "forward"))


@dataclass(frozen=True)
class Figures:
    """One strategy, in milliseconds; medians over rounds unless said.

    Attributes:
        label: the strategy as it was asked for.
        schedule: 'during', 'after', 'priority', 'deferred', or 'xla' where the compiler chooses.
        step_ms: the whole step.
        min_ms: its fastest round.
        spread_percent: its slowest round less its fastest, as percent of the median.
        compute_ms: the step without communication, the same figure for every strategy.
        communication_ms: communication alone.
        exposed_ms: step - compute.
        overlap: 1 - exposed / communication.
        bound_ms: the least that the schedule allows, see `jaxnet.cost.bounds`.
        over_bound: step / bound.
        ratio: step / step of the first strategy.
        rounds_ms: the step in each round, in the order of the rounds.
    """

    label: str
    schedule: str
    step_ms: float
    min_ms: float
    spread_percent: float
    compute_ms: float
    communication_ms: float
    exposed_ms: float
    overlap: float
    bound_ms: float
    over_bound: float
    ratio: float
    rounds_ms: list[float]


@dataclass(frozen=True)
class StepReport:
    """Figures of all strategies, with what they were measured on.

    Attributes:
        mesh: size of each axis.
        peaks: GB/s that a device can send, by axes.
        compute_ms: medians of forward, of forward and backward, and of the step without communication.
    """

    workload: str
    batch: int
    mesh: dict[str, int]
    rounds: int
    steps_per_round: int
    peaks: dict[str, float]
    compute_ms: dict[str, float]
    figures: list[Figures]

    def as_json(self) -> dict[str, Any]:
        """The same as plain dicts and lists."""
        return asdict(self)


def bench_steps(
    workload: Workload,
    strategies: Mapping[str, Strategy],
    rounds: int,
    steps: int,
    trace: Path | None = None,
) -> StepReport:
    """Measure every strategy (by label) in interleaved rounds; every process calls it with the same arguments.

    What is traced, into the directory `trace`, are steps after all that is timed.
    """
    mesh, order = workload.mesh, workload.order
    footprints = {label: footprint(workload.shapes, order, s, mesh.shape) for label, s in strategies.items()}
    used = dict.fromkeys(axes for print_ in footprints.values() for axes in print_.axes)
    tasks = _tasks(workload, strategies, footprints)
    before = {"+".join(axes): link_peak(mesh, axes) for axes in used}
    times = interleave(tasks, rounds, steps)
    peaks = {"+".join(axes): max(before["+".join(axes)], link_peak(mesh, axes)) for axes in used}
    if trace:
        trace_steps({label: tasks[label, "step"] for label in strategies}, trace)
    median = {key: statistics.median(values) for key, values in times.items()}
    base = median[next(iter(strategies)), "step"]
    return StepReport(
        workload=workload.name,
        batch=workload.batch,
        mesh=dict(mesh.shape),
        rounds=rounds,
        steps_per_round=steps,
        peaks={axes: peak / 1e9 for axes, peak in peaks.items()},
        compute_ms={key[1]: median[key] * 1e3 for key in (_FORWARD, _GRADIENTS, _COMPUTE)},
        figures=[
            make_figures(
                label,
                print_.schedule,
                times[label, "step"],
                median[_COMPUTE],
                median[label, "communication"],
                print_.bound(_compute(label, median), peaks),
                base,
            )
            for label, print_ in footprints.items()
        ],
    )


def make_figures(
    label: str, schedule: str, times: Sequence[float], compute: float, communication: float, bound: float, base: float
) -> Figures:
    """The arithmetic of one line; all arguments in seconds, `times` one a round, `base` the first strategy's median."""
    step = statistics.median(times)
    return Figures(
        label=label,
        schedule=schedule,
        step_ms=step * 1e3,
        min_ms=min(times) * 1e3,
        spread_percent=100 * (max(times) - min(times)) / step,
        compute_ms=compute * 1e3,
        communication_ms=communication * 1e3,
        exposed_ms=(step - compute) * 1e3,
        overlap=1 - (step - compute) / communication,
        bound_ms=bound * 1e3,
        over_bound=step / bound,
        ratio=step / base,
        rounds_ms=[seconds * 1e3 for seconds in times],
    )


def _tasks(
    workload: Workload, strategies: Mapping[str, Strategy], footprints: Mapping[str, Footprint]
) -> dict[_Key, TimedProgram]:
    tasks: dict[_Key, TimedProgram] = {
        _COMPUTE: compute_only(workload),
        _GRADIENTS: partial_gradient(workload, range(len(workload.shapes))),
        _FORWARD: partial_gradient(workload, ()),
    }
    for label, strategy in strategies.items():
        tasks[label, "step"] = full_step(workload, strategy, pieces=in_pieces(label))
        tasks[label, "communication"] = communication_only(workload, strategy)
        tasks[label, "first"] = partial_gradient(workload, footprints[label].first)
    return tasks


def _compute(label: str, median: Mapping[_Key, float]) -> Compute:
    return Compute.measured(median[_FORWARD], median[label, "first"], median[_GRADIENTS], median[_COMPUTE])
