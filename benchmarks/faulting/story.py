"""What a job that was started again says about itself: the lines of its launcher and of rank 0, read."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.faulting.watched import Line

_REPORT = re.compile(
    r"^launch: attempt \d+: rank (?P<rank>\d+) (?P<how>.*?) after [\d.]+ s, (?:at step (?P<step>\d+)|before its first)"
    r".*?(?:; the next step came (?P<seconds>[\d.]+) s later)?$"
)
_AGAIN = re.compile(r"^launch: rank .*, attempt \d+$")
_CONTINUING = re.compile(r"^\[0\] continuing .* from step (\d+)$")
_STEP = re.compile(r"^\[0\] step +\d+/")


class Failure(NamedTuple):
    """An attempt that failed, and what came of it.

    Attributes:
        rank: which failed first.
        how: in the launcher's words.
        step: the last step that was done; None if there was none.
        resumed: the step from which the next attempt that trained went on; None if the very next one did not train.
        seconds: from the failure to the next step; None if the very next attempt did not get there.
    """

    rank: int
    how: str
    step: int | None
    resumed: int | None
    seconds: float | None

    @property
    def lost(self) -> int:
        """Steps that were done again."""
        return max(0, (self.step or 0) - (self.resumed or 0)) if self.resumed is not None else 0


def failures(lines: Sequence[Line]) -> list[Failure]:
    """The failures of a job that has ended, in order.

    >>> said = ["launch: rank 1 exited with status 79; all start again in 1 s, attempt 2",
    ...         "[0] continuing runs/x from step 5",
    ...         "launch: attempt 1: rank 1 exited with status 79 after 9.1 s, at step 7; the next step came 8 s later"]
    >>> failures([Line(float(at), text) for at, text in enumerate(said)])
    [Failure(rank=1, how='exited with status 79', step=7, resumed=5, seconds=8.0)]
    """
    starts = _starts([line.text for line in sorted(lines)])
    found: list[Failure] = []
    for line in lines:
        if match := _REPORT.match(line.text):
            resumed = starts[len(found) + 1] if len(found) + 1 < len(starts) else None
            step, seconds = match["step"], match["seconds"]
            found.append(
                Failure(
                    int(match["rank"]),
                    match["how"],
                    None if step is None else int(step),
                    resumed,
                    None if seconds is None or resumed is None else float(seconds),
                )
            )
    return found


def _starts(texts: Sequence[str]) -> list[int | None]:
    """The step after which each attempt began to train; None if it did not."""
    starts: list[int | None] = [None]
    for text in texts:
        if _AGAIN.match(text):
            starts.append(None)
        elif match := _CONTINUING.match(text):
            starts[-1] = int(match[1])
        elif _STEP.match(text) and starts[-1] is None:
            starts[-1] = 0
    return starts
