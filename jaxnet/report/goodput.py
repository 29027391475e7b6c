"""Where the time of a run went, over all its attempts: the ledger read and added up."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.errors import InputError
from jaxnet.report.stragglers import RankTimes, stragglers, times_from_json, times_line

KINDS = ("start-up", "compile", "data wait", "step", "evaluation", "checkpoint", "other", "lost work", "restart")


class Attempt(NamedTuple):
    """One process's part of a run, as it said last.

    Attributes:
        attempt: its number, from 1.
        host: where its first process ran.
        pid: of that process.
        start: when that began, in seconds since 1970.
        time: its last sign of life.
        first: steps that were done when it began to train; None if it did not get there.
        step: steps that were done at its last sign of life.
        seconds: spent by kind.
        ended: whether it ended by itself.
        ranks: what each of them needed for a step, as far as they have said so.
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


class Row(NamedTuple):
    """An attempt with what later ones say about it: `seconds` has lost work and restarts, and all of its time."""

    attempt: Attempt
    seconds: dict[str, float]


class Goodput(NamedTuple):
    """The account of a run.

    Attributes:
        rows: one an attempt.
        wall_seconds: from the first start to the last sign of life.
        useful_seconds: of steps that were not done again.
        lost_steps: done again by a later attempt.
    """

    rows: list[Row]
    wall_seconds: float
    useful_seconds: float
    lost_steps: int

    @property
    def fraction(self) -> float:
        """Useful time by time since the first start."""
        return self.useful_seconds / self.wall_seconds if self.wall_seconds > 0 else 0.0


def read_ledger(path: Path) -> list[Attempt]:
    """The last line of each attempt; lines that are not whole are passed over. OSError if the file cannot be read."""
    attempts: dict[int, Attempt] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            said = {"ranks": [], **json.loads(line)}
            attempt = Attempt(**{**said, "ranks": times_from_json(said["ranks"])})
            attempts[attempt.attempt] = attempt._replace(seconds=dict(attempt.seconds))
        except (ValueError, TypeError):
            continue
    return [attempts[number] for number in sorted(attempts)]


def goodput(attempts: Sequence[Attempt]) -> Goodput:
    """Add up. A step counts for the attempt that did it last.

    What ended by itself before it began to train, such as a command that was refused, is no attempt: between others its
    time is that of a restart, and before the first it is none of the run's. Raises InputError when there are none.
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
        rows.append(Row(attempt, {kind: seconds.get(kind, 0.0) for kind in KINDS}))
    wall = attempts[-1].time - attempts[0].start
    return Goodput(rows, wall, sum(row.seconds["step"] for row in rows), lost_steps)


def lost_by(attempt: Attempt, later: Sequence[Attempt]) -> int:
    """Steps of an attempt that a later one did again."""
    first = attempt.first if attempt.first is not None else attempt.step
    kept = min([attempt.step, *(other.first for other in later if other.first is not None)])
    return attempt.step - max(first, kept)


def goodput_line(found: Goodput) -> str:
    """The account in one line."""
    count = len(found.rows)
    return (
        f"goodput {found.fraction:.1%}: {found.useful_seconds:.1f} s of useful steps in {found.wall_seconds:.1f} s "
        f"since the first start; {count} attempt{'s' * (count > 1)}, {found.lost_steps} steps lost"
    )


def ending_text(found: Goodput) -> str:
    """What the end of an attempt says: the account in one line, and who held it up."""
    return "\n".join([goodput_line(found), *map(str, stragglers(found.rows[-1].attempt.ranks))])


def goodput_text(found: Goodput) -> str:
    """The account as a table, of seconds."""
    return "\n".join(_lines(found))


def goodput_json(found: Goodput) -> dict[str, Any]:
    """The account as JSON values."""
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
    """As JSON values."""
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
