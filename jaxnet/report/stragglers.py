"""Which ranks hold the others up: those whose own time for a step stands out."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_FEWEST = 3  # of two, none can be told to be the slow one
_SPREADS = 3.0
_MATTERS = 0.1

_PARTS = {"host": "its host needs", "device": "its devices keep its processor busy for"}


class RankTimes(NamedTuple):
    """What a rank needs for a step, in seconds: medians over its last steps.

    A synchronous step takes all ranks the same time; what differs is how much of it each needs itself.

    Attributes:
        rank: its number.
        step: from the end of a step to that of the next.
        host: the part of it in which the host does not wait for its devices: batch, dispatch, log.
        device: processor time of CPU devices, summed over their threads; None for other devices.
    """

    rank: int
    step: float
    host: float
    device: float | None = None


class Straggler(NamedTuple):
    """A rank that stands out.

    Attributes:
        rank: its number.
        part: 'host' or 'device', as in `RankTimes`.
        seconds: that it needs for that.
        median: of all ranks.
        limit: that it exceeds.
        ranks: how many were compared.
    """

    rank: int
    part: str
    seconds: float
    median: float
    limit: float
    ranks: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is a straggler: {_PARTS[self.part]} {_ms(self.seconds)} a step, where the median of "
            f"{self.ranks} ranks is {_ms(self.median)} and the limit {_ms(self.limit)}"
        )


def straggler_limit(seconds: Sequence[float], step: float) -> float:
    """What a rank's own time must exceed: the median and three median absolute deviations (MAD) more.

    At least a tenth of a step of `step` seconds more, and a tenth of the median: less is not worth a word, and where
    the MAD is 0, as of ranks that are alike to the last digit, any difference would stand out. Infinite with fewer than
    three ranks.

    >>> straggler_limit([10.0, 11.0, 12.0, 50.0], step=20.0)
    14.5
    """
    if len(seconds) < _FEWEST:
        return math.inf
    median = statistics.median(seconds)
    spread = statistics.median(abs(value - median) for value in seconds)
    return median + max(_SPREADS * spread, _MATTERS * max(step, median))


def stragglers(times: Sequence[RankTimes]) -> list[Straggler]:
    """The ranks that exceed the limit with their host or with their devices; the worst first.

    >>> print(*stragglers([RankTimes(rank, 0.1, 0.09 if rank == 2 else 0.01) for rank in range(4)]))
    rank 2 is a straggler: its host needs 90.0 ms a step, where the median of 4 ranks is 10.0 ms and the limit 20.0 ms
    """
    found = [*_beyond(times, "host"), *_beyond(times, "device")]
    return sorted(found, key=lambda each: each.limit - each.seconds)


def _beyond(times: Sequence[RankTimes], part: str) -> Iterator[Straggler]:
    own = {each.rank: value for each in times if (value := getattr(each, part)) is not None}
    if len(own) < _FEWEST:
        return
    limit = straggler_limit([*own.values()], statistics.median(each.step for each in times))
    median = statistics.median(own.values())
    for rank, value in own.items():
        if value > limit:
            yield Straggler(rank, part, value, median, limit, len(own))


def times_line(times: Sequence[RankTimes]) -> str:
    """The times of all ranks in one line: of each part the median, and from where to where it goes.

    >>> times_line([RankTimes(0, 0.1, 0.02), RankTimes(1, 0.1, 0.04)])
    '2 ranks: step 100.0 ms, host 30.0 ms (20.0 to 40.0)'
    """
    said = [f"{len(times)} ranks: step {_ms(statistics.median(each.step for each in times))}"]
    for part in _PARTS:
        if values := [value for each in times if (value := getattr(each, part)) is not None]:
            low, high = (f"{value * 1e3:.1f}" for value in (min(values), max(values)))
            said.append(f"{part} {_ms(statistics.median(values))} ({low} to {high})")
    return ", ".join(said)


def times_from_json(values: Sequence[dict[str, Any]]) -> list[RankTimes]:
    """The times that a ledger holds as `RankTimes._asdict` gives them; TypeError if they are something else."""
    return [RankTimes(**each) for each in values]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
