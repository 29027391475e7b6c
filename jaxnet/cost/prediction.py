"""How long a step takes under a strategy, from parts that were measured (`jaxnet.cost.measured`).

    computation   forward | backward: leaf 3 | leaf 2 | leaf 1, leaf 0 |   ...   | update
    link                               message 0 ------- | message 1 -------- |

1. Backward makes gradients at the moments that were measured without communication. A message leaves when all that is
   in it is made, and goes through the stages of its strategy's plan.
2. Each axis is a link, which takes one stage at a time, in the order in which they come to it. Where devices are CPUs
   all axes are one link: what their cores copy among themselves is not beside what they send to other hosts.
3. While anything travels, computation gets less of the processor. What is not the whole of one gradient is packed and
   unpacked. Where a step is several programs, each message costs computation the launch of one.
4. What messages and computation cost each other beyond that cannot be measured by itself. It is learned from a few
   steps that were timed (`calibrated`). XLA's step hides nothing: what it takes beyond its parts, each step of one
   program does. And which part of what should be hidden is not: one number for steps of one program, in pieces and
   under `priority` each.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from jaxnet.comm import HOST, AxisSizes, Collective, Reducer, Strategy, messages_of, platform_of
from jaxnet.cost.bounds import BY_XLA
from jaxnet.cost.fit import Curve, rising
from jaxnet.cost.simulation import overlapped, summing_messages
from jaxnet.cost.workloads import Workload
from jaxnet.errors import InputError
from jaxnet.parallel.priority import Order, SteadyStep, Timed, by_priority, steady_step

Way = tuple[str, tuple[str, ...]]  # a kind of collective, and the axes over which it goes

_TELLING = 0.01  # the part of a step that must be hidden, for it to teach


class Parts(NamedTuple):
    """What was measured of a workload on a mesh: seconds, moments from the step's begin.

    Attributes:
        forward: until the loss is known, without communication.
        ready: when the gradient of each leaf is known, in the tree's order (not backward's).
        gradients: when all are.
        step: when parameters are updated.
        curves: of each way in which the plans send.
        share: of the processor's time that messages take from computation while they travel, 0 to 1.
        launch: of the processor, for a program that sends next to nothing.
        packing: for a byte of a message that is not one whole gradient: copied before it travels, and once more behind.
        unhidden: the part of what a step should hide that it does not, by the kind of its plan; more than 1 where
            messages and computation slow each other down. Of a kind that is not in it, all is hidden.
        beyond: what a step of one program takes beyond all that.
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
    beyond: float = 0.0


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
    update = parts.step - parts.gradients + (0.0 if plan.kind in SEVERAL_PROGRAMS else parts.beyond)
    apart = update + overlapped(parts.gradients, [parts.gradients] * len(begins), stages).arrived
    # 3. Beside it: across the end of the step, or before it.
    if strategy.schedule == "priority":
        steady = _steady(parts, begins, [sum(each for _, each in one) for one in stages])
        ends, computed = steady.seconds, steady.computed
        sent = [Sent(place, messages[place].collectives[-1], *span) for place, span in steady.travelled]
    else:
        found = overlapped(parts.gradients, begins, stages, parts.share)
        updated = max(found.computed, found.arrived)
        ends, computed = updated + update, ((0.0, found.computed), (updated, updated + update))
        sent = [
            Sent(place, each, *span)
            for place, spans in enumerate(found.stages)
            for each, span in zip(messages[place].collectives, spans, strict=True)
        ]
    ends += unhidden * max(0.0, apart - ends)
    return PredictedStep(ends, apart - ends, computed, tuple(sent))


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
    summed = strategy if strategy.reducer else replace(strategy, reducer=BY_XLA)
    reducer = summing_messages(summed, f"strategy={strategy.label} is not predicted")
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
    found, cpus = [], platform_of(workload.mesh) == "cpu"
    for sent, bucket in zip(plans, messages.buckets.buckets, strict=True):
        leaves = [order[piece.leaf] for piece in bucket.pieces]
        whole = len(leaves) == 1 and bucket.spec.size == shapes[leaves[0]].size
        begin = parts.gradients if strategy.schedule == "after" else max(parts.ready[leaf] for leaf in leaves)
        packed = 0 if whole else bucket.spec.size * bucket.spec.dtype.itemsize
        stages = [("link" if cpus else "+".join(each.axes), seconds(each, each.bytes)) for each in sent]
        found.append(_Message(sent, stages, begin, packed))
    return found


def _steady(parts: Parts, begins: Sequence[float], seconds: Sequence[float]) -> SteadyStep:
    """Where messages cross a step's end: what is needed first is what backward gives last."""
    moments = [parts.forward, *rising(begins)]
    backward = [Timed(end - begin, sends=(place,)) for place, (begin, end) in enumerate(pairwise(moments))]
    whole = sum(seconds) or 1.0
    forward = [Timed(parts.forward * seconds[place] / whole, (place,)) for place in reversed(range(len(seconds)))]
    pieces = [*forward, *backward, Timed(parts.step - parts.gradients)]
    return steady_step(Order(tuple(range(len(pieces))), by_priority(pieces, seconds)), pieces, seconds, parts.share)


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


def between_slower_hosts(parts: Parts, times: float) -> Parts:
    """The same, if a byte took so many times as long between hosts as it did."""
    curves = {way: curve.slower(times) if HOST in way[1] else curve for way, curve in parts.curves.items()}
    return parts._replace(curves=curves)


# ---- Learned from steps that were timed ----------------------------------------------------------------


def calibrated(parts: Parts, timed: Sequence[tuple[Plan, float]], workload: Workload) -> Parts:
    """The same parts, with what steps were timed to take beyond them, 0 or more.

        beyond   = mean(seconds - predicted)               of steps that hide nothing
        unhidden = sum(seconds - predicted) / sum(hidden)  of the other kinds each, `beyond` being known

    A step that hides next to nothing (under a hundredth of its time) says nothing of its kind.

    Args:
        parts: as measured.
        timed: plans with the seconds of their step.
        workload: the same.
    """
    # 1. Of steps that hide nothing.
    bare = parts._replace(unhidden={}, beyond=0.0)
    plain = [(plan, seconds) for plan, seconds in timed if plan.kind == HIDES_NOTHING]
    if plain:
        longer = (seconds - predicted_step(bare, plan, workload).seconds for plan, seconds in plain)
        parts = parts._replace(beyond=max(0.0, statistics.mean(longer)))
    # 2. Of the others, by kind.
    bare = parts._replace(unhidden={})
    found: dict[str, list[tuple[float, float]]] = {}
    for plan, seconds in timed:
        if plan.kind == HIDES_NOTHING:
            continue
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
