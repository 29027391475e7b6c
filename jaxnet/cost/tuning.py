"""The best plan for a model on these hosts: all are predicted, the most promising are timed against each other.

1. Every plan that gives the same gradients is a candidate: strategies that sum message by message in the precision of
   the gradients, with several sizes of buckets, as one program or in pieces. Of equal plans one is kept.
2. Computation and links are measured. A few plans are timed: XLA's own, the default, and one of each other way to
   run a step. From them the prediction learns what it cannot measure (`jaxnet.cost.prediction.calibrated`).
3. Every candidate's step is predicted, the best that was not timed yet is, and the prediction learns from it, too.
   Then the next. What is predicted to be slower than the default is not timed.
4. The fastest, if it was faster than the default by at least 2 %, and the default are timed again, in interleaved
   rounds. It wins if it is so again, and in every round: else the default stays.
"""

import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax

from jaxnet.comm import Reducer, platform_of
from jaxnet.cost.choice import choice_of
from jaxnet.cost.measured import measured_parts
from jaxnet.cost.prediction import (
    SEVERAL_PROGRAMS,
    Parts,
    Plan,
    calibrated,
    predicted_step,
    travelling,
    ways_of,
)
from jaxnet.cost.rounds import interleave, seconds_a_step
from jaxnet.cost.shapes import byte_size
from jaxnet.cost.step_bench import in_pieces, labelled_strategy, name_and_size
from jaxnet.cost.steps import TimedProgram, full_step, mode_of
from jaxnet.cost.workloads import Workload
from jaxnet.parallel.pieces import computes_apart

_progress = logging.getLogger("jaxnet.progress")

_SIZES = ("512KiB", *(f"{count}MiB" for count in (1, 2, 3, 4, 6, 8, 12, 16, 25, 32, 64)))
_PROBES = ("hierarchical:4MiB", "hierarchical:4MiB+pieces", "priority:4MiB")
_PROMISING = 2
_STEPS = 2  # that a plan is timed for
_LAST = (3, 1)  # rounds, and steps in each, of the two best
_WORTH = 0.98
BY_XLA = "xla"


class Row(NamedTuple):
    """A candidate.

    Attributes:
        label: as `jaxnet bench step --strategy` takes it.
        predicted: seconds a step.
        measured: median seconds a step; None: not timed.
        learned: whether the prediction knew that figure.
    """

    label: str
    predicted: float
    measured: float | None = None
    learned: bool = False


class Tuned(NamedTuple):
    """What was found.

    Attributes:
        best: the label of the plan to use.
        why: in words.
        default: the label of what `strategy=auto` is.
        rows: all candidates; those that were timed first, then by prediction.
        parts: what predictions were made from.
        steps: how many were run, with those that warmed up.
    """

    best: str
    why: str
    default: str
    rows: tuple[Row, ...]
    parts: Parts
    steps: int

    @property
    def errors(self) -> list[float]:
        """How far predictions were off that did not know the figure, as parts of it."""
        return [abs(row.predicted / row.measured - 1) for row in self.rows if row.measured and not row.learned]


def settings(label: str) -> str:
    """What a config is told, to train by this plan.

    >>> settings("ddp:4MiB+pieces")
    'strategy=ddp bucket_bytes=4194304 mode=pieces'
    """
    name, size = name_and_size(label)
    given = [f"strategy={name}", *([f"bucket_bytes={byte_size(size)}"] if size else [])]
    return " ".join([*given, *(["mode=pieces"] if in_pieces(label) else [])])


def default_of(workload: Workload) -> str:
    """The label of what `strategy=auto` is there. All processes call it."""
    label = choice_of(workload).label
    return label if is_allowed(plan_of(label, workload), workload) else label.removesuffix("+pieces")


def plan_of(label: str, workload: Workload) -> Plan:
    """The plan of this label on the devices of a workload."""
    return Plan(labelled_strategy(label, platform=platform_of(workload.mesh)), in_pieces(label))


def is_allowed(plan: Plan, workload: Workload) -> bool:
    """Whether the model of a workload goes with a plan."""
    return workload.allows(plan.strategy, mode_of(plan.strategy, workload.mesh, pieces=plan.pieces))


def candidates(workload: Workload, default: str, bucket_sizes: Sequence[str] = _SIZES) -> dict[str, Plan]:
    """Plans that the model goes with, by label, each once; XLA's own first, then the default.

    Under `xla` BatchNorm's statistics are those of all devices: it is timed all the same, as what others are compared
    with.

    Args:
        workload: a model on a mesh.
        default: a label.
        bucket_sizes: in growing order, as labels have them.
    """
    several_programs = computes_apart(workload.mesh)
    sizes = workload.mesh.shape
    found: dict[str, Plan] = {}
    seen = set()
    waiting = platform_of(workload.mesh) == "cpu" and not several_programs
    for label in _labels(workload, default, bucket_sizes, waiting=waiting):
        plan = plan_of(label, workload)
        if (plan.kind in SEVERAL_PROGRAMS and not several_programs) or not is_allowed(plan, workload):
            continue
        reducer = plan.strategy.reducer
        messages = reducer.plan(workload.shapes, sizes).collectives if isinstance(reducer, Reducer) else ()
        same = (travelling(messages, sizes), plan.kind, plan.strategy.when)
        if same not in seen:
            seen.add(same)
            found[label] = plan
    return found


def _labels(workload: Workload, default: str, bucket_sizes: Sequence[str], *, waiting: bool) -> Iterator[str]:
    # Of plans that are the same the first one stays, so what is to be timed comes first.
    yield from (BY_XLA, default, *_PROBES, "flat", "per_leaf")
    names = ["hierarchical", "ddp", "horovod"] + ["blueconnect"] * (min(workload.mesh.shape.values()) > 1)
    if waiting:
        yield "per_leaf:after=true"
        names += ["hierarchical:after=true", "ddp:after=true"]
    for size in bucket_sizes[: 1 + sum(byte_size(each) < workload.gradient_bytes for each in bucket_sizes)]:
        for name in names:
            yield from (f"{name}:{size}", f"{name}:{size}+pieces")
        yield f"priority:{size}"


def is_enough(parts: Parts, plans: Mapping[str, Plan], workload: Workload) -> bool:
    """Whether all plans can be predicted from what was measured, by a version that may have had fewer."""
    ways = ways_of((plan.strategy for plan in plans.values()), workload)
    return ways <= parts.curves.keys() and len(parts.ready) == len(workload.shapes)


def predict(workload: Workload, parts: Parts) -> Tuned | None:
    """Predict all candidates, and time none; the fastest is said to be the best. None: `parts` is not enough."""
    default = default_of(workload)
    plans = candidates(workload, default)
    if not is_enough(parts, plans, workload):
        return None
    predicted = {label: predicted_step(parts, plan, workload).seconds for label, plan in plans.items()}
    best = _fastest(predicted, workload, default)
    if not is_gain([predicted[best]], [predicted[default]]):
        best = default
    rows = sorted((Row(label, each) for label, each in predicted.items()), key=lambda row: row.predicted)
    return Tuned(best, f"predicted: {_why(best, default, predicted)}", default, tuple(rows), parts, 0)


def tune(workload: Workload, kept: Parts | None = None) -> Tuned:
    """Predict all candidates and time the best. All processes call it with the same arguments.

    Args:
        workload: a model on a mesh.
        kept: what was measured of it before; if that is enough, it is not measured again.
    """
    default = default_of(workload)
    plans = candidates(workload, default)
    if kept is not None and not is_enough(kept, plans, workload):
        kept = None
    tasks: dict[str, TimedProgram] = {}
    seconds: dict[str, float] = {}

    def time(label: str) -> None:
        _progress.info("compiling and timing %s", label)
        tasks[label] = full_step(workload, plans[label].strategy, pieces=plans[label].pieces)
        seconds[label] = seconds_a_step(tasks[label], _STEPS)

    def learned(parts: Parts) -> tuple[Parts, dict[str, float]]:
        if kept is None:
            parts = calibrated(parts, [(plans[label], each) for label, each in seconds.items()], workload)
        return parts, {label: predicted_step(parts, plan, workload).seconds for label, plan in plans.items()}

    # 1. Measure, and learn from a few plans.
    parts = kept or measured_parts(workload, ways_of((plan.strategy for plan in plans.values()), workload))
    for label in _first(plans, default) if kept is None else _compared(plans, default):
        time(label)
    taught = list(seconds) if kept is None else []
    parts, predicted = learned(parts)
    # 2. Time the most promising of the others, and learn from it; then the next.
    before: dict[str, float] = {}
    for _ in range(_PROMISING):
        # Of equal ones the first: no set, whose order would be another in each process.
        label = min((each for each in predicted if each not in seconds), key=predicted.__getitem__, default=default)
        if label == default or predicted[label] > seconds[default]:
            break
        before[label] = predicted[label]
        time(label)
        parts, predicted = learned(parts)
    # 3. What was faster than the default by what is worth a setting, once more beside it.
    best, rival = default, _fastest(seconds, workload, default)
    if is_gain([seconds[rival]], [seconds[default]]):
        last = interleave({label: tasks[label] for label in (rival, default)}, *_LAST)
        seconds |= {label: statistics.median(times) for label, times in last.items()}
        best = rival if is_gain(last[rival], last[default]) else default
    predicted |= before  # as it was before it was timed
    rows = [Row(label, each, seconds.get(label), label in taught) for label, each in predicted.items()]
    rows.sort(key=lambda row: (row.measured is None, row.measured or row.predicted))
    steps = sum(task.calls for task in tasks.values())
    return Tuned(best, _why(best, default, seconds), default, tuple(rows), parts, steps)


def _first(plans: Mapping[str, Plan], default: str) -> list[str]:
    """XLA's plan, the default, and a probe of each kind that is neither's."""
    found = _compared(plans, default)
    kinds = {plans[label].kind for label in found}
    return [*found, *(label for label in _PROBES if label in plans and plans[label].kind not in kinds)]


def _compared(plans: Mapping[str, Plan], default: str) -> list[str]:
    """What all others are compared with: XLA's plan, where it is one, and the default."""
    return [label for label in (BY_XLA, default) if label in plans]


def _fastest(seconds: Mapping[str, float], workload: Workload, default: str) -> str:
    """The fastest plan beside the default that gives the same: under `xla`, running statistics are others."""
    same_by_xla = not jax.tree.leaves(workload.first_state.stats)
    others = [label for label in seconds if label != default and (label != BY_XLA or same_by_xla)]
    return min(others, key=seconds.__getitem__, default=default)


def is_gain(times: Sequence[float], default: Sequence[float]) -> bool:
    """Whether a plan is so much and so surely faster than the default that it is worth a setting.

    Args:
        times: seconds a step of the plan in each round.
        default: those of the default in the same rounds.

    >>> is_gain([4.0, 4.0, 4.5], [5.0] * 3), is_gain([4.0, 4.0, 6.0], [5.0] * 3), is_gain([4.95], [5.0])
    (True, False, False)
    """
    won = all(own < other for own, other in zip(times, default, strict=True))
    return won and statistics.median(times) <= _WORTH * statistics.median(default)


def _why(best: str, default: str, seconds: Mapping[str, float]) -> str:
    said = f"{seconds[best] * 1e3:.1f} ms a step"
    if best != default:
        said += f", the default {default} {seconds[default] * 1e3:.1f}"
    elif others := seconds.keys() - {default, BY_XLA}:
        rival = min(others, key=seconds.__getitem__)
        said += f", {rival} {seconds[rival] * 1e3:.1f} is not surely faster"
    return said if best == BY_XLA or BY_XLA not in seconds else f"{said}, xla {seconds[BY_XLA] * 1e3:.1f}"
