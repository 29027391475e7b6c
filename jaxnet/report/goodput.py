"""Where the time of a run went, over all its attempts, and which ranks held it up.

A run's ledger has one line for each sign of life of each attempt (each start of the run's processes). The last line of
an attempt is its account. A step counts for the attempt that did it last; the time of steps that a later attempt did
again is lost work.

    goodput = time of useful steps / time since the first start
"""

import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.errors import InputError
from jaxnet.files import parse_object, read_lines, record_of

_log = logging.getLogger("jaxnet")

# ---- Stragglers -----------------------------------------------------------------------------------------

_FEWEST = 3  # with two ranks, neither can be called the slow one
_SPREADS = 3.0  # median absolute deviations
_MATTERS = 0.1  # smallest difference that matters, as a fraction of a step

_PARTS = {"host": "its host needs", "device": "its devices keep its processor busy for"}


class RankTimes(NamedTuple):
    """The time that a rank needs for a step, in seconds: medians over its last steps.

    A synchronous step takes all ranks the same time. They differ in how much of it each needs itself.

    Attributes:
        rank: its number.
        step: from the end of a step to the end of the next.
        host: the part in which the host does not wait for its devices: batch, dispatch, log.
        device: processor time of CPU devices, summed over their threads; None for other devices.
    """

    rank: int
    step: float
    host: float
    device: float | None = None


class Straggler(NamedTuple):
    """A rank that is slower than the others.

    Attributes:
        rank: its number.
        part: 'host' or 'device', as in `RankTimes`.
        seconds: the rank's time for that part.
        median: the median of all ranks.
        limit: the limit that the rank exceeds.
        ranks: how many ranks were compared.
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
    """Return the time above which a rank is a straggler: median + three median absolute deviations (MAD).

    The margin is at least a tenth of `step` (the seconds of a step) and a tenth of the median: a smaller difference
    does not matter, and with a MAD of 0 any difference would count. Infinite with fewer than three ranks.

    >>> straggler_limit([10.0, 11.0, 12.0, 50.0], step=20.0)
    14.5
    """
    if len(seconds) < _FEWEST:
        return math.inf
    median = statistics.median(seconds)
    spread = statistics.median(abs(value - median) for value in seconds)
    return median + max(_SPREADS * spread, _MATTERS * max(step, median))


def stragglers(times: Sequence[RankTimes]) -> list[Straggler]:
    """Return the ranks whose host or devices exceed the limit, the worst first.

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
    """Return the times of all ranks in one line: for each part the median, and the range.

    >>> times_line([RankTimes(0, 0.1, 0.02), RankTimes(1, 0.1, 0.04)])
    '2 ranks: step 100.0 ms, host 30.0 ms (20.0 to 40.0)'
    """
    said = [f"{len(times)} ranks: step {_ms(statistics.median(each.step for each in times))}"]
    for part in _PARTS:
        if values := [value for each in times if (value := getattr(each, part)) is not None]:
            low, high = (f"{value * 1e3:.1f}" for value in (min(values), max(values)))
            said.append(f"{part} {_ms(statistics.median(values))} ({low} to {high})")
    return ", ".join(said)


def times_from_json(values: Sequence[Any]) -> list[RankTimes]:
    """Return the times that a ledger stores as `RankTimes._asdict`; ValueError if `values` are something else."""
    return [record_of(RankTimes, each) for each in values]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


# ---- The account ----------------------------------------------------------------------------------------

KINDS = ("start-up", "compile", "data wait", "step", "evaluation", "checkpoint", "other", "lost work", "restart")


class Attempt(NamedTuple):
    """One start of a run's processes, as its last line in the ledger describes it.

    Attributes:
        attempt: its number, from 1.
        host: where its first process ran.
        pid: the id of that process.
        start: when that began, in seconds since 1970.
        time: its last sign of life, in seconds since 1970.
        first: steps that were done when it began to train; None if it did not get so far.
        step: steps that were done at its last sign of life.
        seconds: time spent, by kind.
        ended: whether it ended by itself.
        ranks: the time that each rank needed for a step, as far as known.
    """

    attempt: int
    host: str
    pid: int
    start: float
    time: float
    first: int | None
    step: int
    seconds: dict[str, float]
    ended: bool
    ranks: Sequence[RankTimes] = ()


class GoodputRow(NamedTuple):
    """An attempt with all of its time by kind, including the lost work and restarts that later attempts show."""

    attempt: Attempt
    seconds: dict[str, float]


class Goodput(NamedTuple):
    """The account of a run.

    Attributes:
        rows: one per attempt.
        wall_seconds: from the first start to the last sign of life.
        useful_seconds: time of the steps that were not done again.
        lost_steps: steps that a later attempt did again.
    """

    rows: list[GoodputRow]
    wall_seconds: float
    useful_seconds: float
    lost_steps: int

    @property
    def fraction(self) -> float:
        """Useful time divided by the time since the first start."""
        return self.useful_seconds / self.wall_seconds if self.wall_seconds > 0 else 0.0


def read_ledger(path: Path) -> list[Attempt]:
    """Return the last line of each attempt; OSError if the file cannot be read.

    Half a line at the end is one that is being written. Other lines that no run has written are left out, and a warning
    names the first.
    """
    attempts: dict[int, Attempt] = {}
    odd: list[str] = []
    for number, line in read_lines(path):
        try:
            attempt = record_of(Attempt, parse_object(line))
            attempts[attempt.attempt] = attempt
        except ValueError as error:
            odd.append(f"line {number}: {error}")
    if odd:
        more = f"; and {len(odd) - 1} more" if len(odd) > 1 else ""
        _log.warning("%s is damaged in %s%s; what stands there is left out", path, odd[0], more)
    return [attempts[number] for number in sorted(attempts)]


def goodput(attempts: Sequence[Attempt]) -> Goodput:
    """Add up the time of all attempts. A step counts for the attempt that did it last.

    An attempt that ended by itself before it began to train, such as a refused command, is left out: its time counts as
    a restart if it lies between others, and not at all if it comes first. Raises InputError when none is left.
    """
    attempts = [attempt for attempt in attempts if attempt.first is not None or not attempt.ended]
    if not attempts:
        raise InputError("the ledger holds no attempt: the run has not begun")
    rows, lost_steps = [], 0
    for place, attempt in enumerate(attempts):
        again = lost_by(attempt, attempts[place + 1 :])
        lost_steps += again
        seconds = dict(attempt.seconds)
        lost = seconds.get("step", 0.0) * again / max(1, attempt.step - (attempt.first or 0))
        seconds["step"] = seconds.get("step", 0.0) - lost
        seconds["lost work"] = seconds.get("lost work", 0.0) + lost
        seconds["restart"] = max(0.0, attempt.start - attempts[place - 1].time) if place else 0.0
        rows.append(GoodputRow(attempt, {kind: seconds.get(kind, 0.0) for kind in KINDS}))
    wall = attempts[-1].time - attempts[0].start
    return Goodput(rows, wall, sum(row.seconds["step"] for row in rows), lost_steps)


def lost_by(attempt: Attempt, later: Sequence[Attempt]) -> int:
    """Return how many steps of an attempt a later one did again."""
    first = attempt.first if attempt.first is not None else attempt.step
    kept = min([attempt.step, *(other.first for other in later if other.first is not None)])
    return attempt.step - max(first, kept)


def goodput_line(found: Goodput) -> str:
    """Return the account in one line."""
    count = len(found.rows)
    return (
        f"goodput {found.fraction:.1%}: {found.useful_seconds:.1f} s of useful steps in {found.wall_seconds:.1f} s "
        f"since the first start; {count} attempt{'s' * (count > 1)}, {found.lost_steps} steps lost"
    )


def ending_text(found: Goodput) -> str:
    """Return what is printed at the end of an attempt: the account in one line, and the stragglers."""
    return "\n".join([goodput_line(found), *map(str, stragglers(found.rows[-1].attempt.ranks))])


def goodput_text(found: Goodput) -> str:
    """Return the account as a table of seconds."""
    return "\n".join(_lines(found))


def goodput_json(found: Goodput) -> dict[str, Any]:
    """Return the account as JSON values."""
    return {
        "goodput": found.fraction,
        "wall_seconds": found.wall_seconds,
        "useful_seconds": found.useful_seconds,
        "lost_steps": found.lost_steps,
        "attempts": [
            attempt_json(row.attempt)
            | {"seconds": row.seconds, "stragglers": [each._asdict() for each in stragglers(row.attempt.ranks)]}
            for row in found.rows
        ],
    }


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as JSON values, which is its line in the ledger."""
    return attempt._asdict() | {"ranks": [each._asdict() for each in attempt.ranks]}


def _lines(found: Goodput) -> Iterator[str]:
    used = [kind for kind in KINDS if any(row.seconds[kind] >= 0.05 for row in found.rows)]
    yield f"attempt          steps {''.join(f'{kind:>11}' for kind in used)}       host, end"
    for row in found.rows:
        attempt = row.attempt
        steps = "-" if attempt.first is None else f"{attempt.first}-{attempt.step}"
        end = "ended" if attempt.ended else "last sign of life"
        yield f"{attempt.attempt:>7} {steps:>14} {_cells(row.seconds, used)}       {attempt.host}, {end}"
    if len(found.rows) > 1:
        total = {kind: sum(row.seconds[kind] for row in found.rows) for kind in used}
        yield f"    all                {_cells(total, used)}"
    yield ""
    for attempt, _ in found.rows:
        if len(attempt.ranks) > 1:
            yield f"attempt {attempt.attempt}: {times_line(attempt.ranks)}"
        yield from (f"attempt {attempt.attempt}: {each}" for each in stragglers(attempt.ranks))
    yield goodput_line(found)


def _cells(seconds: dict[str, float], kinds: Sequence[str]) -> str:
    return "".join(f"{seconds[kind]:>11.1f}" for kind in kinds)
