"""Tries that were made, one JSON object a line, so that none is made again."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Tried(NamedTuple):
    """One try, and what surrounded it.

    Attributes:
        fault: its name.
        number: of the try.
        seed: of all random draws.
        survived: see `Outcome`, as the four after it.
        lost: steps.
        seconds: from the fault to the next step.
        same: the final state.
        note: for a person.
        start_up: seconds in which the run's later attempts were started, the median; None if there was none.
        compile: and compiled.
        load: of the machine: processes that wanted to run.
    """

    fault: str
    number: int
    seed: int
    survived: bool
    lost: int
    seconds: float | None
    same: bool | None
    note: str
    start_up: float | None
    compile: float | None
    load: float


def read(path: Path) -> list[Tried]:
    """All that are there; a line that an interruption has cut off is passed over."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(Tried(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def append(path: Path, tries: Iterable[Tried]) -> None:
    """Add lines, on a line of their own whatever was there."""
    with path.open("a+") as file:
        file.seek(max(0, file.tell() - 1))
        if file.read(1) not in ("", "\n"):
            file.write("\n")
        file.writelines(json.dumps(each._asdict()) + "\n" for each in tries)


def missing(done: Sequence[Tried], fault: str, seed: int, first: int, count: int) -> list[int]:
    """Numbers of the tries from `first` on that were not made yet."""
    there = {each.number for each in done if (each.fault, each.seed) == (fault, seed)}
    return [number for number in range(first, first + count) if number not in there]


def table(tries: Sequence[Tried], titles: dict[str, str]) -> str:
    """In Markdown, a row for each fault of `titles` that was tried.

    >>> tried = Tried("kill", 0, 0, True, 4, 12.34, True, "", 9.0, 2.0, 1.5)
    >>> print(table([tried, tried._replace(number=1, lost=7, seconds=None)], {"kill": "kill -9"}).splitlines()[2])
    | kill -9 | 2 | 2 | 5.5 (7) | 12.3 (12.3) | all |
    """
    head = ["fault", "tries", "survived", "steps lost", "seconds to the next step", "same bits"]
    lines = [head, ["---"] * len(head)]
    for name, title in titles.items():
        if of_fault := [each for each in tries if each.fault == name]:
            lines.append(_row(title, of_fault))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(title: str, tries: Sequence[Tried]) -> list[str]:
    seconds = [each.seconds for each in tries if each.seconds is not None]
    lost = [each.lost for each in tries]
    same = [each.same for each in tries if each.same is not None]
    return [
        title,
        str(len(tries)),
        str(sum(each.survived for each in tries)),
        f"{statistics.median(lost):g} ({max(lost)})",
        f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "—",
        "—" if not same else "all" if all(same) else f"{sum(same)} of {len(same)}",
    ]


def where_time_goes(tries: Sequence[Tried]) -> str:
    """What a restart consists of, and how busy the machine was."""
    again = [each for each in tries if each.start_up is not None and each.compile is not None and each.seconds]
    loads = sorted(each.load for each in tries)
    words = f"load of the machine {loads[0]:.1f} to {loads[-1]:.1f}, median {statistics.median(loads):.1f}"
    if not again:
        return words
    start_up, compiling, whole = (
        statistics.median(getattr(each, name) or 0.0 for each in again) for name in ("start_up", "compile", "seconds")
    )
    return f"of {whole:.1f} s to the next step: start-up {start_up:.1f}, compilation {compiling:.1f} (medians); {words}"
