"""What a strategy is: a reducer and a schedule, with a name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxnet.comm.buckets.bucketed import after, during, in_order
from jaxnet.comm.reducer import Reducer
from jaxnet.comm.sharded import Sharded
from jaxnet.comm.strategies.averaging import Averaging

Schedule = Literal["during", "after", "deferred", "local"]


@dataclass(frozen=True)
class Strategy:
    """A reducer and a schedule, with a name.

    Attributes:
        name: what `strategy=NAME` says.
        summary: one line, with the source.
        reducer: sums the gradients, or what a 'local' schedule averages; None leaves the partitioning, and with it
            the reduction, to XLA.
        schedule: 'during': a bucket travels as soon as backward has produced it; 'after': all wait for
            the end of backward; 'deferred': sums arrive in parts, are updated in parts, and the updated
            parameters are gathered by the next step, each just before its use; 'local': devices update parameters
            of their own, whose mean is taken every so many steps.
        sharded: the parts of a 'deferred' schedule; None for the others.
        exact: the result is the sum, up to the order of additions; False where less is sent.
        averaging: when a 'local' schedule averages, and what it does with the mean; None for the others.
    """

    name: str
    summary: str
    reducer: Reducer | None
    schedule: Schedule = "during"
    sharded: Sharded | None = None
    exact: bool = True
    averaging: Averaging | None = None


def scheduled(strategy: Strategy, order: Sequence[int] | None = None) -> Reducer | None:
    """The strategy's reducer with its schedule, taking leaves in `order`; None if XLA does the reduction."""
    if strategy.reducer is None:
        return None
    reducer = strategy.reducer if order is None else in_order(order, strategy.reducer)
    # The schedule is outermost: XLA:CPU orders operations by the order in which a barrier names them.
    return after(reducer) if strategy.schedule == "after" else during(reducer)
