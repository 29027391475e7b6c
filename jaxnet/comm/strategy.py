"""What a strategy is: a reducer and a schedule, with a name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxnet.comm.bucketed import after, during, in_order
from jaxnet.comm.reducer import Reducer
from jaxnet.comm.sharded import Sharded

# ---- When devices that train by themselves meet, and what they then go on with ------------------------


@dataclass(frozen=True)
class BlockFilter:
    """Block-wise filtering of what a round has changed, as BMUF: `d <- momentum d + rate (mean - anchor)`.

    Attributes:
        momentum: None: 1 - 1/devices, the default of the paper and of CNTK.
        rate: of the mean of what the devices have changed.
    """

    momentum: float | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not (self.momentum is None or 0 <= self.momentum < 1) or not self.rate > 0:
            raise ValueError(
                "block filtering: momentum must be at least 0 and below 1, or none, and rate above 0; got "
                f"momentum={self.momentum}, rate={self.rate}"
            )

    def momentum_among(self, devices: int) -> float:
        """The momentum, given how many devices there are."""
        return 1 - 1 / devices if self.momentum is None else self.momentum


@dataclass(frozen=True)
class Averaging:
    """Each device trains on its own, and every so many steps the mean of their parameters takes their place.

    Attributes:
        every: steps in a round; parameters travel at the end of each.
        synchronous_steps: so many first steps average gradients, as any other strategy; a multiple of `every`.
        with_optimizer: whether the optimizer's state is averaged with the parameters; else each device keeps its own.
        block: what is done with the mean; None: it is taken as it is.

    >>> Averaging(every=8, synchronous_steps=16).exchanges_per_step(total_steps=32)
    0.5625
    """

    every: int
    synchronous_steps: int = 0
    with_optimizer: bool = False
    block: BlockFilter | None = None

    def __post_init__(self) -> None:
        if self.every < 1 or self.synchronous_steps < 0 or self.synchronous_steps % self.every:
            raise ValueError(
                "averaging: every must be at least 1 and synchronous_steps a multiple of it, so that rounds end at "
                f"multiples of every; got every={self.every}, synchronous_steps={self.synchronous_steps}"
            )

    def synchronous_share(self, total_steps: int) -> float:
        """The part of the steps of a run in which gradients travel."""
        return min(1.0, self.synchronous_steps / total_steps)

    def averaging_share(self, total_steps: int) -> float:
        """The part of the steps of a run in which parameters travel; a last round that is cut short counts in part."""
        return (1 - self.synchronous_share(total_steps)) / self.every

    def exchanges_per_step(self, total_steps: int) -> float:
        """How often a step sends something: its mean over a run."""
        return self.synchronous_share(total_steps) + self.averaging_share(total_steps)


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
