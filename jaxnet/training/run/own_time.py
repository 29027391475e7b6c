"""What a process needs for a step by itself, beside what all wait for together."""

import statistics
import time
from collections import deque

from jaxnet.report.stragglers import RankTimes

_WINDOW = 1000  # steps of which the medians are taken
_FEWEST = 5  # of them, before there are any


class OwnTime:
    """Takes a reading at the end of each step: three clocks, no more.

    The host's own time is what is left of a step when waiting for devices is taken away. Devices of a CPU compute on
    threads other than the loop's; while they wait for other ranks these sleep, so processor time tells how long they
    computed. Of other devices, and where MPI polls in those threads, nothing can be told: `computes` is False.
    """

    def __init__(self, *, computes: bool) -> None:
        self._computes = computes
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._before: tuple[float, float, float] | None = None

    def pause(self) -> None:
        """What is done until the next step has ended is none."""
        self._before = None

    def stepped(self, waited: float) -> None:
        """A step was dispatched; `waited`: seconds that the loop has waited for devices, since it began."""
        now = time.perf_counter(), waited, time.process_time() - time.thread_time()
        if self._before is not None:
            wall, waiting, busy = (value - before for value, before in zip(now, self._before, strict=True))
            self._steps.append((wall, wall - waiting, busy))
        self._before = now

    def times(self, rank: int) -> RankTimes | None:
        """The medians; None after a few steps only."""
        if len(self._steps) < _FEWEST:
            return None
        wall, host, busy = (statistics.median(values) for values in zip(*self._steps, strict=True))
        return RankTimes(rank, wall, host, busy if self._computes else None)
