"""A job that is started again after it failed, and what became of each attempt."""

import queue
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from jaxnet.cluster.progress import PROGRESS, furthest, read_progress
from jaxnet.cluster.restarts import Attempt, Decision, Restarts, report
from jaxnet.cluster.supervise import Rank, describe, exit_status, run_together, signals_to

ATTEMPT = "JAXNET_ATTEMPT"
"""The number of this start of the job, from 1; set by a launcher that restarts."""


class Restarting:
    """Runs a job until it ends well, may not be started again, or is told to end.

    When the same rank has used up the restarts, it goes on with a process less, as long as that leaves `fewest`.

    Args:
        ranks: makes the processes of an attempt, of which there are so many.
        folder: where they write their progress.
        grace_seconds: see `run_together`.
        max_restarts: see `Restarts`.
        fewest: processes with which the job may go on.
    """

    def __init__(
        self,
        ranks: Callable[[int], Sequence[Rank]],
        folder: Path,
        grace_seconds: float,
        max_restarts: int,
        fewest: int | None = None,
    ) -> None:
        self._ranks, self._folder, self._grace_seconds = ranks, folder, grace_seconds
        self._most, self._fewest = max_restarts, fewest
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._attempts: list[Attempt] = []

    def run(self, processes: int) -> int:
        """The exit status: 0, or that of the first rank that failed in the last attempt."""
        self._processes, self._started_with = processes, processes
        self._restarts = Restarts(self._most)
        with signals_to(self._signals.put):
            while self._goes_on(self._attempt()):
                pass
        failure = self._attempts[-1].result.failure
        if len(self._attempts) > 1:
            for line in report(self._attempts):
                _say(line)
        return 0 if failure is None else exit_status(failure.returncode)

    def _attempt(self) -> Attempt:
        number, started = len(self._attempts) + 1, time.monotonic()
        ranks = [(rank, self._folder / f"{number}-{rank.index}") for rank in self._ranks(self._processes)]
        result = run_together([_told(rank, number, path) for rank, path in ranks], self._grace_seconds)
        done = furthest([read_progress(path) for _, path in ranks])
        self._attempts.append(Attempt(result, result.at - started, done))
        return self._attempts[-1]

    def _goes_on(self, attempt: Attempt) -> bool:
        """Whether there is to be another attempt; returns when it is time for it."""
        if attempt.result.failure is None:
            return False
        what = describe(attempt.result.failure, attempt.result.others)
        decision = self._restarts.after(attempt)
        if decision.wait is None and self._with_fewer(attempt, decision):
            _say(f"{what}; {decision.why}: on with {self._processes} processes, attempt {len(self._attempts) + 1}")
            return not self._told_to_end(0.0)
        if decision.wait is None:
            _say(f"{what}; not started again: {decision.why}")
            return False
        _say(f"{what}; all start again in {decision.wait:g} s, attempt {len(self._attempts) + 1}")
        return not self._told_to_end(decision.wait)

    def _with_fewer(self, attempt: Attempt, decision: Decision) -> bool:
        """Whether the next attempt is to have a process less; a number that the batch cannot be split by is passed."""
        if self._fewest is None or self._processes <= self._fewest or attempt.result.signalled:
            return False
        unfit = self._processes < self._started_with and attempt.progress is None
        if not decision.fewer and not unfit:
            return False
        self._processes -= 1
        self._restarts = Restarts(self._most)
        return True

    def _told_to_end(self, seconds: float) -> bool:
        """Whether a signal comes within that time, or has come between two attempts."""
        try:
            self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


def _told(rank: Rank, attempt: int, progress: Path) -> Rank:
    return replace(rank, environment={**rank.environment, ATTEMPT: str(attempt), PROGRESS: str(progress)})


def _say(line: str) -> None:
    print(f"launch: {line}", file=sys.stderr, flush=True)
