"""What a strategy will put on which link and when, from its plan alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from jaxnet.comm import AXES, Bucket, Collective, Strategy, all_reduce, bucketed, in_order
from jaxnet.comm.collective import axes_size
from jaxnet.comm.reducer import AxisSizes
from jaxnet.cost.bounds import Compute, Wire, bound_after, bound_deferred, bound_during, busiest_link, one_by_one

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
        return bound_after(compute, wire) if self.schedule == "after" else bound_during(compute, wire)

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
    plan = in_order(order, reducer).plan(list(shapes), axis_sizes)
    if plan.buckets is None or not plan.buckets.buckets:
        return Footprint(_schedule(strategy), plan.collectives, (), (order[0],))
    first, last = plan.buckets.buckets[0], plan.buckets.buckets[-1]
    return Footprint(
        schedule=_schedule(strategy),
        collectives=plan.collectives,
        last=reducer.plan([_whole(last, strategy, axis_sizes)], axis_sizes).collectives,
        first=tuple(dict.fromkeys(order[piece.leaf] for piece in first.pieces)),
    )


def _schedule(strategy: Strategy) -> str:
    return "xla" if strategy.reducer is None else strategy.schedule


def _whole(bucket: Bucket, strategy: Strategy, axis_sizes: AxisSizes) -> jax.ShapeDtypeStruct:
    """A single leaf that fills `bucket`: planned alone, it says what that bucket sends, which a plan does not."""
    devices = axes_size(strategy.sharded.axes, axis_sizes) if strategy.sharded else 1  # such a bucket holds a part
    return jax.ShapeDtypeStruct((bucket.size * devices,), bucket.dtype)
