"""A strategy is a value: what sums the gradients, and when they travel.

    Strategy(bucketed(scattered("device", all_reduce("host")), 25 * MiB), "during")

There are four kinds. What a training step makes of each is told in `jaxnet.parallel`.

- 'xla': no reducer; XLA partitions one global program and places the sums itself.
- 'replicated': a `Reducer`; every device holds all parameters and gets the whole sum.
- 'sharded': a `Sharded`; every device gets, keeps and updates its shard alone.
- 'local': a `Reducer` and an `Averaging`; devices train by themselves and now and then average their parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from jaxnet.comm.as_html import html_code, html_line
from jaxnet.comm.bucketed import after, during, in_order
from jaxnet.comm.guards import require_count
from jaxnet.comm.reducer import Reducer
from jaxnet.comm.sharded import Sharded, shards_in_order


def _changed(value: Any) -> str:
    """A dataclass as the call that makes it, without what is left at its default."""
    given = (
        f"{field.name}={getattr(value, field.name)!r}"
        for field in fields(value)
        if getattr(value, field.name) != field.default
    )
    return f"{type(value).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
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

    __repr__ = _changed

    def momentum_among(self, devices: int) -> float:
        """The momentum, given how many devices there are."""
        return 1 - 1 / devices if self.momentum is None else self.momentum


@dataclass(frozen=True, repr=False)
class Averaging:
    """The schedule of local training: every so many steps the mean of all devices' parameters takes their place.

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
        require_count(self.every, "averaging: every")
        if self.synchronous_steps < 0 or self.synchronous_steps % self.every:
            raise ValueError(
                "averaging: synchronous_steps must be 0 or a multiple of every, so that rounds end at multiples of "
                f"every; got every={self.every}, synchronous_steps={self.synchronous_steps}"
            )

    __repr__ = _changed

    def synchronous_share(self, total_steps: int) -> float:
        """The fraction of a run's steps in which gradients travel."""
        return min(1.0, self.synchronous_steps / total_steps)

    def averaging_share(self, total_steps: int) -> float:
        """The fraction of a run's steps in which parameters travel; a last round that is cut short counts in part."""
        return (1 - self.synchronous_share(total_steps)) / self.every

    def exchanges_per_step(self, total_steps: int) -> float:
        """How often a step sends something: the mean over a run."""
        return self.synchronous_share(total_steps) + self.averaging_share(total_steps)


Moment = Literal["during", "after", "priority", "deferred"]
Schedule = Moment | Averaging
Kind = Literal["xla", "replicated", "sharded", "local"]


@dataclass(frozen=True, repr=False)
class Strategy:
    """How the gradients of a training run travel. It prints as the expression that makes it.

    Attributes:
        reducer: a tree `Reducer` sums gradients (or averages parameters, with an `Averaging`); a `Sharded` scatters
            gradients and gathers parameters; None leaves the sums to XLA.
        schedule: 'during': a bucket travels as soon as backward has produced it. 'after': all wait for the end of
            backward. 'priority': a bucket may still travel while the next step begins, and those that its forward pass
            needs first go first; where a step is one program, as 'during'. 'deferred', of a `Sharded`: sums arrive in
            shards, are updated in shards, and the next step gathers each parameter just before its use. An
            `Averaging`: devices train by themselves between means.
        name: what `strategy=NAME` says; '' for a strategy that has none.
        summary: one line, with the source.
        exact: whether the result is the sum up to the order of additions; False where less is sent.

    Raises:
        ValueError: the reducer and the schedule do not go together.

    >>> from jaxnet.comm import MiB, all_reduce, bucketed
    >>> Strategy(bucketed(all_reduce("host", "device"), 4 * MiB)).kind
    'replicated'
    """

    reducer: Reducer | Sharded | None
    schedule: Schedule = "during"
    name: str = ""
    summary: str = ""
    exact: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.reducer, Sharded) != (self.schedule == "deferred"):
            raise ValueError(
                "the schedule 'deferred' goes with sharded(...), and no other does; got "
                f"{type(self.reducer).__name__} with schedule={self.schedule!r}"
            )
        if not isinstance(self.reducer, Reducer | Sharded | None):
            raise ValueError(
                f"reducer is a {type(self.reducer).__name__}; wanted a Reducer such as bucketed(all_reduce('host', "
                "'device'), 25 * MiB), a Sharded, or None"
            )
        if not isinstance(self.schedule, Averaging) and self.schedule not in get_args(Moment):
            raise ValueError(
                f"no schedule {self.schedule!r}; wanted {', '.join(map(repr, get_args(Moment)))} or Averaging(...)"
            )
        if isinstance(self.schedule, Averaging) and self.reducer is None:
            raise ValueError("Averaging(...) needs a reducer, which sums the parameters")

    @property
    def kind(self) -> Kind:
        """Which of the four kinds it is."""
        if self.reducer is None:
            return "xla"
        if isinstance(self.schedule, Averaging):
            return "local"
        return "sharded" if isinstance(self.reducer, Sharded) else "replicated"

    @property
    def when(self) -> str:
        """When it travels: 'during', 'after', 'priority', 'deferred', 'local', or 'xla' where XLA decides."""
        if self.reducer is None:
            return "xla"
        return "local" if isinstance(self.schedule, Averaging) else self.schedule

    @property
    def label(self) -> str:
        """Its name, or its expression if it has none."""
        return self.name or self.expression

    @property
    def expression(self) -> str:
        """The expression that makes what the step runs, such as `during(bucketed(...))`."""
        if self.kind == "replicated" and self.schedule != "priority":
            return f"{self.schedule}({self.reducer!r})"
        return f"Strategy({self._made_of})"

    @property
    def _made_of(self) -> str:
        return f"{self.reducer!r}" + ("" if self.schedule == "during" else f", {self.schedule!r}")

    def __repr__(self) -> str:
        return f"Strategy({self._made_of}{'' if self.exact else ', exact=False'})"

    def __str__(self) -> str:
        return f"Strategy({self._made_of})"  # in a run's config.json, with which a later version must agree

    def _repr_html_(self) -> str:
        named = ": ".join(filter(None, (self.name, self.summary)))
        return html_code(repr(self)) + (html_line(named) if named else "")


def scheduled(strategy: Strategy, order: Sequence[int] | None = None) -> Reducer | Sharded | None:
    """What a step runs: the strategy's reducer with its schedule, taking leaves in `order`; None if XLA sums.

    Of a local strategy it is the reducer as it is: all parameters are there when they are averaged.
    """
    reducer = strategy.reducer
    if reducer is None or isinstance(strategy.schedule, Averaging):
        return reducer
    if isinstance(reducer, Sharded):
        return reducer if order is None else shards_in_order(order, reducer)
    ordered = reducer if order is None else in_order(order, reducer)
    # The schedule is outermost: XLA:CPU orders operations by the order in which a barrier names them.
    return after(ordered) if strategy.schedule == "after" else during(ordered)
