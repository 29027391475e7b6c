"""How long a step takes under a strategy, from parts that were measured: computation, messages, what these cost it.

    computation   forward | backward: leaf 3 | leaf 2 | leaf 1, leaf 0 |   ...   | update
    link                               message 0 ------- | message 1 -------- |

1. Computation is timed without communication, up to some moments of backward. Gradients between two moments are ready
   in proportion to their bytes.
2. Every kind of collective of the plans is timed for several sizes, and fitted (`jaxnet.cost.fit`).
3. A message leaves when backward has made all that is in it, and goes through the stages of its strategy's plan. Each
   link takes one stage at a time, in the order in which they come to it.
4. While anything travels, computation gets less of the processor: by what messages were measured to take of it. What
   is not the whole of one gradient is packed and unpacked. Where a step is several programs, each message costs
   computation the launch of one.
5. What messages and computation cost each other beyond that cannot be measured by itself. It is learned from a few
   steps that were timed (`calibrated`): which part of what should be hidden is not, one number for steps of one
   program, in pieces and under `priority` each. Where nothing travels beside computation nothing is added.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxnet.comm import AXES, HOST, AxisSizes, Collective, Reducer, Strategy, messages_of
from jaxnet.cost.bounds import BY_XLA
from jaxnet.cost.collectives import TRANSFERS, Transfer, make_program, measured_times
from jaxnet.cost.fit import Curve, fitted, rising
from jaxnet.cost.rounds import gathered, interleave, wait_for_all
from jaxnet.cost.simulation import overlapped, summing_messages
from jaxnet.cost.steps import compute_only, packing_only, partial_gradient
from jaxnet.cost.workloads import Workload
from jaxnet.errors import InputError
from jaxnet.parallel.priority import Order, SteadyStep, Timed, by_priority, steady_step

Way = tuple[str, tuple[str, ...]]  # a kind of collective, and the axes over which it goes

_CUTS = 3  # moments of backward that are timed
_SIZES = (1 << 16, 1 << 20, 1 << 22, 1 << 24)
_SMALL, _LARGE = 1 << 16, 1 << 22  # messages whose part of the processor is measured: launched, and on their way
_BYTES = 1 << 24  # that a size of messages is timed for, but at least 3 and at most 20 of them
_ROUNDS, _STEPS = 3, 1
_STEP, _PACKING = -1, -2  # beside gradients up to so many leaves
_TELLING = 0.01  # the part of a step that must be hidden, for it to teach
_PLAIN: dict[str, Transfer] = {each.kind: each for each in TRANSFERS.values() if each.plain}


class Parts(NamedTuple):
    """What was measured of a workload on a mesh: seconds, moments from the step's begin.

    Attributes:
        forward: until the loss is known, without communication.
        ready: when the gradient of each leaf is known, in the tree's order (not backward's).
        gradients: when all are.
        step: when parameters are updated.
        curves: of each way in which the plans send.
        share: of this host's processor time that messages take while they travel, 0 to 1.
        launch: of the processor, for a program that sends next to nothing.
        packing: for a byte of a message that is not one whole gradient: copied before it travels, and once more behind.
        unhidden: the part of what a step should hide that it does not, by the kind of its plan; more than 1 where
            messages and computation slow each other down. Of a kind that is not in it, all is hidden.
    """

    forward: float
    ready: tuple[float, ...]
    gradients: float
    step: float
    curves: Mapping[Way, Curve]
    share: float
    launch: float = 0.0
    packing: float = 0.0
    unhidden: Mapping[str, float] = MappingProxyType({})


# ---- From parts to a step -------------------------------------------------------------------------------


SEVERAL_PROGRAMS = ("pieces", "priority")  # kinds of a plan
HIDES_NOTHING = "after backward"


class Plan(NamedTuple):
    """A strategy, and whether its step is several programs."""

    strategy: Strategy
    pieces: bool = False

    @property
    def kind(self) -> str:
        """Steps of one kind are run alike: 'one program', 'pieces', 'priority', or 'after backward', beside nothing."""
        if self.strategy.schedule == "priority":
            return "priority"
        if self.pieces:
            return "pieces"
        return HIDES_NOTHING if self.strategy.when in ("after", "xla") else "one program"


class Sent(NamedTuple):
    """A collective of a message, and from when to when it travels; seconds from the step's begin."""

    message: int
    collective: Collective
    begin: float
    end: float


class PredictedStep(NamedTuple):
    """A step in time.

    Attributes:
        seconds: of all.
        hidden: by how much that is less than computation and messages one after the other; below 0 where it is more.
        computed: from when to when the processor computes.
        sent: what travels; under `priority` first the rest of what the step before has made.
    """

    seconds: float
    hidden: float
    computed: tuple[tuple[float, float], ...]
    sent: tuple[Sent, ...]


def predicted_step(parts: Parts, plan: Plan, workload: Workload) -> PredictedStep:
    """When a step computes and sends, and when it ends.

    Raises:
        InputError: the strategy does not sum message by message, or in a way that was not measured; there is one
            device, which sends nothing.
    """
    strategy, unhidden = plan.strategy, parts.unhidden.get(plan.kind, 0.0)
    # 1. When each message may leave, and for how long it takes which links.
    messages = _messages(parts, strategy, workload)
    stages, begins = [each.stages for each in messages], [each.begin for each in messages]
    copies = [parts.packing / 2 * each.packed for each in messages]
    spent, launch = 0.0, parts.launch if plan.kind in SEVERAL_PROGRAMS else 0.0
    for place in sorted(range(len(begins)), key=begins.__getitem__):
        spent += copies[place] + launch
        begins[place] += spent
    parts = parts._replace(gradients=parts.gradients + spent, step=parts.step + spent + sum(copies))
    # 2. Messages after all computation: what a step takes that hides nothing.
    update = parts.step - parts.gradients
    apart = update + overlapped(parts.gradients, [parts.gradients] * len(begins), stages).arrived
    # 3. Beside it: across the end of the step, or before it.
    if strategy.schedule == "priority":
        steady = _steady(parts, begins, [sum(each for _, each in one) for one in stages])
        ends = steady.seconds + unhidden * max(0.0, apart - steady.seconds)
        whole = [Sent(place, messages[place].collectives[-1], *span) for place, span in steady.travelled]
        return PredictedStep(ends, apart - ends, steady.computed, tuple(whole))
    found = overlapped(parts.gradients, begins, stages, parts.share)
    updated = max(found.computed, found.arrived)
    ends = updated + update
    ends += unhidden * max(0.0, apart - ends)
    sent = [
        Sent(place, each, *span)
        for place, spans in enumerate(found.stages)
        for each, span in zip(messages[place].collectives, spans, strict=True)
    ]
    return PredictedStep(ends, apart - ends, ((0.0, found.computed), (updated, ends)), tuple(sent))


class _Message(NamedTuple):
    """A message of a step.

    Attributes:
        collectives: by which it travels.
        stages: their links, and for how many seconds each.
        begin: when backward has made all that is in it.
        packed: bytes that are copied to make it.
    """

    collectives: tuple[Collective, ...]
    stages: list[tuple[str, float]]
    begin: float
    packed: int


def _messages(parts: Parts, strategy: Strategy, workload: Workload) -> list[_Message]:
    reducer = summing_messages(strategy.reducer or BY_XLA, f"strategy={strategy.label} is not predicted")
    if workload.mesh.size == 1:
        raise InputError(f"strategy={strategy.label} is not predicted: one device sends nothing; take several")
    order, shapes, sizes = workload.order, workload.shapes, workload.mesh.shape
    messages = messages_of(reducer, shapes, sizes, order)

    def seconds(each: Collective, bytes_: int) -> float:
        if (curve := parts.curves.get((each.kind, each.axes))) is None:
            raise InputError(f"strategy={strategy.label} is not predicted: its {each.kind} was not measured")
        return curve.seconds(bytes_)

    plans = [travelling(sent, sizes) for sent in messages.collectives(sizes)]
    if strategy.kind == "xla":  # it merges its messages, copies nothing, and sends when backward has ended
        merged = replace(plans[0][0], elements=sum(each.elements for [each] in plans))
        return [_Message((merged,), [("link", seconds(merged, workload.gradient_bytes))], parts.gradients, 0)]
    found = []
    for sent, bucket in zip(plans, messages.buckets.buckets, strict=True):
        leaves = [order[piece.leaf] for piece in bucket.pieces]
        whole = len(leaves) == 1 and bucket.spec.size == shapes[leaves[0]].size
        begin = parts.gradients if strategy.schedule == "after" else max(parts.ready[leaf] for leaf in leaves)
        packed = 0 if whole else bucket.spec.size * bucket.spec.dtype.itemsize
        found.append(_Message(sent, [("+".join(each.axes), seconds(each, each.bytes)) for each in sent], begin, packed))
    return found


def _steady(parts: Parts, begins: Sequence[float], seconds: Sequence[float]) -> SteadyStep:
    """Where messages cross a step's end: what is needed first is what backward gives last."""
    moments = [parts.forward, *rising(begins)]
    backward = [Timed(end - begin, sends=(place,)) for place, (begin, end) in enumerate(pairwise(moments))]
    whole = sum(seconds) or 1.0
    forward = [Timed(parts.forward * seconds[place] / whole, (place,)) for place in reversed(range(len(seconds)))]
    pieces = [*forward, *backward, Timed(parts.step - parts.gradients)]
    return steady_step(Order(tuple(range(len(pieces))), by_priority(pieces, seconds)), pieces, seconds, parts.share)


def between_slower_hosts(parts: Parts, times: float) -> Parts:
    """The same, if a byte took so many times as long between hosts as it did."""
    curves = {way: curve.slower(times) if HOST in way[1] else curve for way, curve in parts.curves.items()}
    return parts._replace(curves=curves)


# ---- Learned from steps that were timed ----------------------------------------------------------------


def calibrated(parts: Parts, timed: Sequence[tuple[Plan, float]], workload: Workload) -> Parts:
    """The same parts, with what steps were timed to hide: for each kind, over all of its steps, 0 or more.

        unhidden = sum(seconds - predicted) / sum(hidden)

    A step that hides next to nothing (under a hundredth of its time) says nothing of it.

    Args:
        parts: as measured.
        timed: plans with the seconds of their step.
        workload: the same.
    """
    bare = parts._replace(unhidden={})
    found: dict[str, list[tuple[float, float]]] = {}
    for plan, seconds in timed:
        step, of_kind = predicted_step(bare, plan, workload), found.setdefault(plan.kind, [])
        if step.hidden > _TELLING * step.seconds:
            of_kind.append((seconds - step.seconds, step.hidden))
    taught = {kind: _unhidden(of_kind) for kind, of_kind in found.items()}
    return parts._replace(unhidden={**parts.unhidden, **taught})


def _unhidden(steps: Sequence[tuple[float, float]]) -> float:
    """The part of what is hidden by which steps are longer.

    >>> _unhidden([(0.5, 2.0), (1.5, 2.0)]), _unhidden([(-1.0, 2.0)]), _unhidden([])
    (0.5, 0.0, 0.0)
    """
    if not steps:
        return 0.0
    longer, hidden = sum(each for each, _ in steps), sum(each for _, each in steps)
    return max(0.0, float(longer / hidden))


# ---- Measured -------------------------------------------------------------------------------------------


def ways_of(strategies: Iterable[Strategy], workload: Workload) -> set[Way]:
    """The ways in which strategies that sum message by message send."""
    reducers, sizes = [strategy.reducer or BY_XLA for strategy in strategies], workload.mesh.shape
    plans = [each.plan(workload.shapes, sizes).collectives for each in reducers if isinstance(each, Reducer)]
    return {(each.kind, each.axes) for plan in plans for each in travelling(plan, sizes)}


def travelling(collectives: Iterable[Collective], axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """Those that join devices, over the axes that do.

    >>> [sent] = travelling([Collective("all-reduce", ("host", "device"), 2, 100, "float32")], {"host": 2, "device": 1})
    >>> sent.axes
    ('host',)
    """
    return tuple(
        replace(each, axes=tuple(axis for axis in each.axes if axis_sizes[axis] > 1))
        for each in collectives
        if each.size > 1
    )


def measured_parts(workload: Workload, ways: Iterable[Way]) -> Parts:
    """Time a workload's computation, and messages in each of `ways`. All processes call it with the same arguments.

    Raises:
        InputError: there is no such collective to time.
    """
    order, mesh = workload.order, workload.mesh
    sizes = [workload.shapes[leaf].size * workload.shapes[leaf].dtype.itemsize for leaf in order]
    cuts = _cuts(sizes)
    tasks = {0: partial_gradient(workload, ())} | {end: partial_gradient(workload, order[:end]) for end in cuts}
    others = {_STEP: compute_only(workload), _PACKING: packing_only(workload)}
    times = interleave({**tasks, **others}, _ROUNDS, _STEPS)
    forward, *moments, step = rising([float(np.median(times[key])) for key in [*tasks, _STEP]])
    known = dict(zip(order, _between(sizes, cuts, [forward, *moments]), strict=True))
    ready = tuple(known[leaf] for leaf in range(len(order)))
    curves = {way: _curve(mesh, way, workload.gradient_bytes) for way in sorted(ways)}
    share = min(0.9, _processor_part(mesh, min(workload.gradient_bytes, _LARGE))[0])
    launch = _processor_part(mesh, _SMALL)[1]
    packing = float(np.median(times[_PACKING])) / workload.gradient_bytes
    return Parts(forward, ready, moments[-1], step, curves, share, launch, packing)


def _cuts(sizes: Sequence[int]) -> list[int]:
    """How many leaves make a third of the bytes, two thirds, and all; of leaves that are whole.

    >>> _cuts([10, 10, 10, 30])
    [2, 4]
    """
    reached = np.cumsum(sizes)
    wanted = [reached[-1] * part / _CUTS for part in range(1, _CUTS + 1)]
    return sorted({min(int(np.searchsorted(reached, each)) + 1, len(sizes)) for each in wanted})


def _between(sizes: Sequence[int], cuts: Sequence[int], moments: Sequence[float]) -> list[float]:
    """When each leaf is ready: between two moments in proportion to bytes; `moments[0]` is before the first.

    >>> _between([1, 1, 2], cuts=[2, 3], moments=[10.0, 12.0, 20.0])
    [11.0, 12.0, 20.0]
    """
    reached = np.cumsum(sizes)
    return [float(each) for each in np.interp(reached, [0, *(reached[end - 1] for end in cuts)], moments)]


def _curve(mesh: Mesh, way: Way, total: int) -> Curve:
    kind, axes = way
    if kind not in _PLAIN:
        raise InputError(f"messages that travel by {kind} are not timed")
    times: dict[int, list[float]] = {}
    for size in [each for each in _SIZES if each <= max(total, _SIZES[1])]:
        elements, seen, _ = measured_times(mesh, axes, _PLAIN[kind], size, _times(size))
        times[4 * elements] = list(seen.mean(0))
    return fitted(times)


def _times(size: int) -> int:
    return min(20, max(3, _BYTES // size))


def _processor_part(mesh: Mesh, size: int) -> tuple[float, float]:
    """What a message takes of a process's cores: as a part of its time, and in seconds; the most of all processes."""
    program = make_program(TRANSFERS["all_reduce"], AXES, size, mesh)
    jax.block_until_ready(program.call(program.message))
    wait_for_all()
    begun, used = time.perf_counter(), time.process_time()
    for _ in range(_times(size)):
        jax.block_until_ready(program.call(program.message))
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    part = used / (seconds * len(os.sched_getaffinity(0)))
    most = gathered(np.array([part, used / _times(size)])).max(0)
    return float(most[0]), float(most[1])
