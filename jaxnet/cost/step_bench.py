"""What a strategy hides and what it exposes: a whole step beside its compute, its communication and its bound."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxnet.comm import Strategy
from jaxnet.cost.bounds import Compute
from jaxnet.cost.collectives import link_peak
from jaxnet.cost.footprint import Footprint, footprint
from jaxnet.cost.labels import in_pieces
from jaxnet.cost.rounds import interleave
from jaxnet.cost.steps import (
    Task,
    check_batch,
    communication_only,
    compute_only,
    full_step,
    order_of,
    partial_gradient,
)
from jaxnet.cost.traces import trace_steps
from jaxnet.cost.workloads import Workload

_Key = tuple[str, str]
_COMPUTE, _GRADIENTS, _FORWARD = (("", part) for part in ("compute", "gradients", "forward"))


@dataclass(frozen=True)
class Figures:
    """One strategy, in milliseconds; medians over rounds unless said.

    Attributes:
        label: the strategy as it was asked for.
        schedule: 'during', 'after', 'deferred', or 'xla' where the compiler chooses.
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
class Report:
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
    mesh: Mesh,
    rounds: int,
    steps: int,
    trace: Path | None = None,
) -> Report:
    """Measure every strategy (by label) in interleaved rounds; every process calls it with the same arguments.

    What is traced, into the directory `trace`, are steps after all that is timed.
    """
    check_batch(workload, mesh)
    order = order_of(workload)
    footprints = {label: footprint(workload.shapes, order, s, mesh.shape) for label, s in strategies.items()}
    used = dict.fromkeys(axes for print_ in footprints.values() for axes in print_.axes)
    tasks = _tasks(workload, strategies, footprints, mesh)
    before = {"+".join(axes): link_peak(mesh, axes) for axes in used}
    times = interleave(tasks, rounds, steps)
    peaks = {"+".join(axes): max(before["+".join(axes)], link_peak(mesh, axes)) for axes in used}
    if trace:
        trace_steps({label: tasks[label, "step"] for label in strategies}, trace)
    median = {key: statistics.median(values) for key, values in times.items()}
    base = median[next(iter(strategies)), "step"]
    return Report(
        workload=workload.name,
        batch=workload.sizes.batch,
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
    workload: Workload, strategies: Mapping[str, Strategy], footprints: Mapping[str, Footprint], mesh: Mesh
) -> dict[_Key, Task]:
    everything = range(len(workload.shapes))
    tasks: dict[_Key, Task] = {
        _COMPUTE: compute_only(workload, mesh),
        _GRADIENTS: partial_gradient(workload, everything, mesh),
        _FORWARD: partial_gradient(workload, (), mesh),
    }
    for label, strategy in strategies.items():
        tasks[label, "step"] = full_step(workload, strategy, mesh, pieces=in_pieces(label))
        tasks[label, "communication"] = communication_only(workload, strategy, mesh)
        tasks[label, "first"] = partial_gradient(workload, footprints[label].first, mesh)
    return tasks


def _compute(label: str, median: Mapping[_Key, float]) -> Compute:
    return Compute.measured(median[_FORWARD], median[label, "first"], median[_GRADIENTS], median[_COMPUTE])
