"""What a strategy is: a reducer and a schedule, with a name."""

from dataclasses import dataclass
from typing import Literal

from jaxnet.comm.reducer import Reducer
from jaxnet.comm.sharded import Sharded

Schedule = Literal["during", "after", "deferred"]


@dataclass(frozen=True)
class Strategy:
    """A reducer and a schedule, with a name.

    Attributes:
        name: what `strategy=NAME` says.
        summary: one line, with the source.
        reducer: sums the gradients; None leaves the partitioning, and with it the reduction, to XLA.
        schedule: 'during': a bucket travels as soon as backward has produced it; 'after': all wait for
            the end of backward; 'deferred': sums arrive in parts, are updated in parts, and the updated
            parameters are gathered by the next step, each just before its use.
        sharded: the parts of a 'deferred' schedule; None for the others.
        exact: the result is the sum, up to the order of additions; False where less is sent.
    """

    name: str
    summary: str
    reducer: Reducer | None
    schedule: Schedule = "during"
    sharded: Sharded | None = None
    exact: bool = True
