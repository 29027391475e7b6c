"""A job that is started again after it failed, or with more, and what became of each attempt."""

import functools
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from jaxnet import errors
from jaxnet.cluster.progress import PROGRESS, furthest, read_progress
from jaxnet.cluster.restarts import TOLD_TO_END, Attempt, Restarts, report
from jaxnet.cluster.supervise import Ended, Rank, Stop, describe, exit_status, run_together, signals_to
from jaxnet.errors import InputError

ATTEMPT = "JAXNET_ATTEMPT"
"""The number of this start of the job, from 1; set by a launcher that restarts."""

_FIRST_STEP_SECONDS = 1.0  # between two looks whether it was done


class Members(Protocol):
    """Who takes part in a job, which may be others in each attempt."""

    def gather(self, attempt: int) -> Sequence[Rank] | str:
        """The processes of an attempt; or why there can be none now."""

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        """With whom to go on where the budget is used up, in words; None: with nobody.

        `always` says that no other failed, and `began` that a step was done.
        """

    def await_more(self, over: threading.Event) -> str:
        """Wait until more could take part than now, and say who; empty when it is `over`, or nobody can come."""


class Restarting:
    """Runs a job until it ends well, may not be started again, or is told to end.

    Args:
        members: who takes part.
        folder: where they write their progress.
        grace_seconds: see `run_together`.
        max_restarts: see `Restarts`.
    """

    def __init__(self, members: Members, folder: Path, grace_seconds: float, max_restarts: int) -> None:
        self._members, self._folder, self._grace_seconds = members, folder, grace_seconds
        self._most, self._restarts = max_restarts, Restarts(max_restarts)
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._attempts: list[Attempt] = []
        self._status = 0

    def run(self) -> int:
        """The exit status: 0, or that of the first rank that failed in the last attempt.

        Raises InputError when those who are needed never come.
        """
        with signals_to(self._signals.put):
            while (ranks := self._gathered()) is not None and self._goes_on(self._attempt(ranks)):
                pass
        if len(self._attempts) > 1:
            for line in report(self._attempts):
                say(line)
        return self._status

    def _gathered(self) -> Sequence[Rank] | None:
        """The processes of the next attempt, waited for; None: there is none."""
        while isinstance(found := self._members.gather(len(self._attempts) + 1), str):
            decision = self._restarts.absent()
            if decision.wait is None and not self._attempts:
                raise InputError(f"{found}; {decision.why}")
            if decision.wait is None:
                say(f"{found}; not started again: {decision.why}")
                self._status = self._status or 1
                return None
            say(f"{found}; asked again in {decision.wait:g} s")
            if self._told_to_end(decision.wait):
                return None
        return None if self._told_to_end(0.0) else found

    def _attempt(self, ranks: Sequence[Rank]) -> Attempt:
        number, started = len(self._attempts) + 1, time.monotonic()
        paths = [self._folder / f"{number}-{rank.index}" for rank in ranks]
        told = [_told(rank, number, path) for rank, path in zip(ranks, paths, strict=True)]
        result = run_together(told, self._grace_seconds, functools.partial(self._watching, paths))
        done = furthest([read_progress(path) for path in paths])
        self._attempts.append(Attempt(result, result.at - started, done))
        return self._attempts[-1]

    @contextmanager
    def _watching(self, paths: Sequence[Path], stop: Stop) -> Iterator[None]:
        over = threading.Event()
        growing = threading.Thread(target=self._grow, args=(paths, stop, over), daemon=True)
        growing.start()
        try:
            yield
        finally:
            over.set()
            growing.join()

    def _grow(self, paths: Sequence[Path], stop: Stop, over: threading.Event) -> None:
        """Stop the attempt when more could take part in the next, once it has done a step and can save."""
        who = self._members.await_more(over)
        while who and not over.wait(_FIRST_STEP_SECONDS):
            if any(read_progress(path) for path in paths):
                say(f"{who}; all save and start again, attempt {len(self._attempts) + 2}")
                stop()
                return

    def _goes_on(self, attempt: Attempt) -> bool:
        """Whether there is to be another attempt; returns when it is time for it."""
        result = attempt.result
        if result.failure is None:
            self._status = 0
            return result.stopped and not result.signalled
        self._status = exit_status(result.failure.returncode)
        what = describe(result.failure, result.others)
        decision = self._restarts.after(attempt)
        if decision.wait is not None:
            say(f"{what}; all start again in {decision.wait:g} s, attempt {len(self._attempts) + 1}")
            return not self._told_to_end(decision.wait)
        began = attempt.progress is not None
        if decision.why == TOLD_TO_END or not (
            others := self._members.without(result.failure, always=decision.fewer, began=began)
        ):
            say(f"{what}; not started again: {decision.why}")
            return False
        say(f"{what}; {decision.why}: on with {others}, attempt {len(self._attempts) + 1}")
        self._restarts = Restarts(self._most)
        return not self._told_to_end(0.0)

    def _told_to_end(self, seconds: float) -> bool:
        """Whether a signal comes within that time, or has come between two attempts."""
        try:
            number = self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        if not self._attempts:
            self._status = exit_status(-number)
        return True


def _told(rank: Rank, attempt: int, progress: Path) -> Rank:
    return replace(rank, environment={**rank.environment, ATTEMPT: str(attempt), PROGRESS: str(progress)})


def say(line: str) -> None:
    """A word of the launcher's own, between the lines of its processes."""
    errors.say(f"launch: {line}")
