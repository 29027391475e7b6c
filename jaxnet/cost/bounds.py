"""The least that a step can take: the longest chain of what cannot happen at the same time.

A schedule decides what may overlap. Every chain below is a sequence in which each part needs the one before, of
measured compute and of the fewest bytes at the measured peak of their link, so no implementation of the
schedule is faster. Latency, copies, and the cores that communication itself needs are left out: a bound, no prediction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import jax

from jaxnet.comm import (
    AXES,
    AxisSizes,
    Bucket,
    Collective,
    Reducer,
    Sharded,
    Strategy,
    all_reduce,
    axes_size,
    bucketed,
    in_order,
    scheduled,
    wire_bytes_per_axis,
)


@dataclass(frozen=True)
class Compute:
    """Seconds of a step without communication, up to four moments; later ones are never smaller.

    Attributes:
        forward: the loss is known.
        first: the gradients of the first bucket are known.
        gradients: all gradients are known.
        step: parameters are updated.
    """

    forward: float
    first: float
    gradients: float
    step: float

    @classmethod
    def measured(cls, forward: float, first: float, gradients: float, step: float) -> "Compute":
        """From separate measurements, whose noise may put one before another: the smaller value then counts.

        >>> Compute.measured(forward=1.0, first=2.5, gradients=2.25, step=3.0).first
        2.25
        """
        gradients = min(gradients, step)
        first = min(first, gradients)
        return cls(min(forward, first), first, gradients, step)


@dataclass(frozen=True)
class Wire:
    """Seconds that links are busy; the busiest link, where a strategy uses several.

    Attributes:
        scatter: what travels once gradients are known: all of an all-reduce, or the reduce-scatters.
        last: of that, the bucket that is ready last.
        gather: what has to arrive before forward can use it: the all-gathers of `deferred`, else 0.
        head: of that, the bucket that is used first.
    """

    scatter: float
    last: float
    gather: float = 0.0
    head: float = 0.0


def bound_after(compute: Compute, wire: Wire) -> float:
    """`step + scatter`: nothing travels before backward ends, and the update needs the last of it.

    >>> bound_after(Compute(1, 2, 5, 6), Wire(scatter=10, last=3))
    16
    """
    return compute.step + wire.scatter


def bound_during(compute: Compute, wire: Wire) -> float:
    """`max(step, first + scatter, gradients + last)`.

    The link cannot start before the first bucket is ready; the last bucket cannot start before backward ends.

    >>> bound_during(Compute(1, 2, 5, 6), Wire(scatter=10, last=3))
    12
    """
    return max(compute.step, compute.first + wire.scatter, compute.gradients + wire.last)


def bound_priority(compute: Compute, wire: Wire) -> float:
    """`max(step, scatter + first - forward)`, from one step to the next.

    Messages may travel under forward too, but not between the moment when the last parameters have arrived and the one
    when backward gives the first gradients. Of that gap the end of forward is left out.

    >>> bound_priority(Compute(1, 2, 5, 6), Wire(scatter=10, last=3))
    11
    """
    return max(compute.step, wire.scatter + compute.first - compute.forward)


def bound_deferred(compute: Compute, wire: Wire) -> float:
    """`max(gather + scatter, head + first + scatter, head + gradients + last, gather + backward + last)`.

    Gathers may overlap forward and scatters backward. But forward needs the first gather and backward the last
    one, and then as in `during`. `backward = gradients - forward`. The update is left out: each device does its part.

    >>> bound_deferred(Compute(1, 2, 5, 6), Wire(scatter=5, last=1.5, gather=5, head=1.5))
    10.5
    """
    backward = compute.gradients - compute.forward
    return max(
        wire.gather + wire.scatter,
        wire.head + compute.first + wire.scatter,
        wire.head + compute.gradients + wire.last,
        wire.gather + backward + wire.last,
    )


def busiest_link(collectives: Iterable[Collective], peaks: Mapping[str, float]) -> float:
    """Seconds that the busiest axis needs for the fewest bytes of `collectives`.

    Args:
        collectives: a plan's, or a part of them.
        peaks: bytes a second that a device can send, by axes as `wire_bytes_per_axis` names them.

    >>> busiest_link([Collective("all-reduce", ("host",), 2, 250, "float32")], {"host": 500.0})
    2.0
    """
    return max((sent / peaks[axes] for axes, sent in wire_bytes_per_axis(collectives).items()), default=0.0)


def one_by_one(collectives: Iterable[Collective], peaks: Mapping[str, float]) -> float:
    """Seconds that `collectives` need where each takes the result of the one before: those of one bucket."""
    return sum(sent / peaks[axes] for axes, sent in wire_bytes_per_axis(collectives).items())


# ---- What a strategy will put on which link and when, from its plan alone -----------------------------


BY_XLA = bucketed(all_reduce(*AXES), bucket_bytes=1, split=False)
"""What XLA sends for replicated parameters: every gradient by itself, before it combines them as it likes."""


@dataclass(frozen=True)
class Footprint:
    """Traffic of one step.

    Attributes:
        schedule: the strategy's; 'xla' where the compiler chooses.
        collectives: all of the step's gradients.
        last: those of the bucket that is ready last.
        first: leaves of the bucket that is ready first.
    """

    schedule: str
    collectives: tuple[Collective, ...]
    last: tuple[Collective, ...]
    first: tuple[int, ...]

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Axes that the step's collectives span, each once."""
        return list(dict.fromkeys(collective.axes for collective in self.collectives))

    def bound(self, compute: Compute, peaks: Mapping[str, float]) -> float:
        """Seconds that the step takes at least; XLA is allowed the schedule `during`."""
        if self.schedule == "deferred":
            return bound_deferred(compute, self._halves(peaks))
        wire = Wire(busiest_link(self.collectives, peaks), one_by_one(self.last, peaks))
        bounds = {"after": bound_after, "priority": bound_priority}
        return bounds.get(self.schedule, bound_during)(compute, wire)

    def _halves(self, peaks: Mapping[str, float]) -> Wire:
        """Parameters on their way in, and gradients on their way out; the last bucket out is the first one in."""
        scatters, gathers = _split(self.collectives)
        last, head = _split(self.last)
        return Wire(
            scatter=busiest_link(scatters, peaks),
            last=one_by_one(last, peaks),
            gather=busiest_link(gathers, peaks),
            head=one_by_one(head, peaks),
        )


def _split(collectives: Sequence[Collective]) -> tuple[list[Collective], list[Collective]]:
    """Those that sum gradients, and those that bring parameters."""
    gathers = [collective for collective in collectives if collective.kind == "all-gather"]
    return [collective for collective in collectives if collective.kind != "all-gather"], gathers


def footprint(
    shapes: Sequence[jax.ShapeDtypeStruct], order: Sequence[int], strategy: Strategy, axis_sizes: AxisSizes
) -> Footprint:
    """The traffic of `strategy` for gradients of these shapes, which backward produces in `order`."""
    reducer = strategy.reducer or BY_XLA
    ordered = scheduled(strategy, order) or in_order(order, BY_XLA)
    plan = ordered.plan(list(shapes), axis_sizes)
    if plan.buckets is None or not plan.buckets.buckets:
        return Footprint(strategy.when, plan.collectives, (), (order[0],))
    first, last = plan.buckets.buckets[0], plan.buckets.buckets[-1]
    if isinstance(reducer, Reducer) and reducer.message is not None:
        of_last = reducer.message(plan.buckets.shapes_in(last)).plan(last.spec, axis_sizes)
    else:
        of_last = reducer.plan([_whole(last, reducer, axis_sizes)], axis_sizes)
    return Footprint(
        schedule=strategy.when,
        collectives=plan.collectives,
        last=of_last.collectives,
        first=tuple(dict.fromkeys(piece.leaf for piece in first.pieces)),
    )


def _whole(bucket: Bucket, reducer: Reducer | Sharded, axis_sizes: AxisSizes) -> jax.ShapeDtypeStruct:
    """A single leaf that fills `bucket`: planned alone, it says what that bucket sends, which a plan does not."""
    # A bucket of a sharded strategy holds one device's shard.
    devices = axes_size(reducer.axes, axis_sizes) if isinstance(reducer, Sharded) else 1
    return jax.ShapeDtypeStruct((bucket.size * devices,), bucket.dtype)
