"""Whether a job that failed is started again, and when: a budget that progress refills, and a growing wait."""

import functools
import queue
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from jaxnet import errors
from jaxnet.cluster.progress import PROGRESS, Progress, furthest, read_progress
from jaxnet.errors import BAD_INPUT_STATUS, InputError
from jaxnet.operations.supervise import (
    ChildResult,
    Ended,
    Rank,
    Stop,
    describe,
    exit_status,
    how_it_ended,
    run_together,
    signals_to,
)

_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_SENT_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_SENT_ON_ANOTHER_HOST = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
_CONNECTION_LOST = 255  # as ssh says it
_LONGEST_QUOTE = 160
TOLD_TO_END = "it was told to end"


class LaunchAttempt(NamedTuple):
    """One start of a job: how it ended, after how long, and what it did."""

    result: ChildResult
    seconds: float
    progress: Progress | None


class Decision(NamedTuple):
    """What follows a failure.

    Attributes:
        wait: seconds before the next attempt; None: there is none.
        why: there is none.
        fewer: it might go on without the rank that failed every time.
    """

    wait: float | None
    why: str = ""
    fewer: bool = False


@dataclass
class Restarts:
    """Decides after each attempt.

    An attempt that began at a later step than the one before shows that the job saves and gets on: the budget is then
    full again. A step that fails each time is not progress, however many steps before it were done anew.

    Attributes:
        most: restarts without progress.
    """

    most: int
    _used: int = 0
    _first: int = 0
    _mistake: str | None = None
    _failed: frozenset[str] = frozenset()

    def after(self, attempt: LaunchAttempt) -> Decision:
        """Whether there is another attempt, and when."""
        failure = attempt.result.failure
        assert failure is not None, "nothing failed"
        if attempt.result.signalled:
            return Decision(None, TOLD_TO_END)
        before, self._mistake = self._mistake, _mistake(attempt, failure)
        if self._mistake is not None and self._mistake == before:
            return Decision(None, "it failed twice in the same way, which a restart does not mend")
        if attempt.progress is not None and attempt.progress.first > self._first:
            self._used, self._first, self._failed = 0, attempt.progress.first, frozenset()
        self._failed |= {failure.where or str(failure.index)}
        return self._again(fewer=len(self._failed) == 1)

    def absent(self) -> Decision:
        """Whether those who are needed and are not there are asked again, and when: out of the same budget."""
        return self._again(fewer=False)

    def _again(self, fewer: bool) -> Decision:
        if self._used >= self.most:
            why = f"{self.most} restarts without progress are used up (--max-restarts)"
            return Decision(None, why, fewer)
        self._used += 1
        return Decision(min(_FIRST_WAIT_SECONDS * 2 ** (self._used - 1), _LONGEST_WAIT_SECONDS))


def report(attempts: list[LaunchAttempt]) -> list[str]:
    """A line for each attempt: who failed first, how, when, at which step, and how long until the next step.

    >>> killed = ChildResult(Ended(1, -9, 12.3), 1, 100.0, "", False)
    >>> done = ChildResult(None, 0, 130.0, "", False)
    >>> tries = [LaunchAttempt(killed, 12.3, Progress(1, 90.0, 27)), LaunchAttempt(done, 20.0, Progress(21, 108.5, 60))]
    >>> print(*report(tries), sep="\\n")
    attempt 1: rank 1 was killed by SIGKILL (9) after 12.3 s, at step 27; the next step came 8.5 s later
    attempt 2: ended well after 20.0 s, at step 60
    """
    return [f"attempt {index + 1}: {_line(attempts[index:])}" for index in range(len(attempts))]


def _line(attempts: list[LaunchAttempt]) -> str:
    result, seconds, progress = attempts[0]
    step = "before its first step" if progress is None else f"at step {progress.step}"
    began = next((later.progress.began for later in attempts[1:] if later.progress is not None), None)
    after = "" if began is None else f"; the next step came {began - result.at:.1f} s later"
    if result.failure is None:
        how = "stopped to go on with more" if result.stopped and len(attempts) > 1 else "ended well"
        return f"{how} after {seconds:.1f} s, {step}{after}"
    own = "" if _was_killed(result.failure) else result.last_line
    said = f" ({own[:_LONGEST_QUOTE]})" if own else ""
    return f"{how_it_ended(result.failure)}, {step}{said}{after}"


def _mistake(attempt: LaunchAttempt, failure: Ended) -> str | None:
    """What makes a failure one that would come again: its way and words, without the numbers in them."""
    if _was_killed(failure) or (failure.where and failure.returncode == _CONNECTION_LOST):
        return None
    if attempt.progress is not None and failure.returncode != BAD_INPUT_STATUS:
        return None
    return f"{failure.returncode} {re.sub(r'[0-9]+', '#', attempt.result.last_line)}"


def _was_killed(failure: Ended) -> bool:
    return failure.returncode in (_SENT_ON_ANOTHER_HOST if failure.where else _SENT_FROM_OUTSIDE)


# ---- A job that is started again after it failed, or with more, and what became of each attempt -------


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
        self._attempts: list[LaunchAttempt] = []
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

    def _attempt(self, ranks: Sequence[Rank]) -> LaunchAttempt:
        number, started = len(self._attempts) + 1, time.monotonic()
        paths = [self._folder / f"{number}-{rank.index}" for rank in ranks]
        told = [_told(rank, number, path) for rank, path in zip(ranks, paths, strict=True)]
        result = run_together(told, self._grace_seconds, functools.partial(self._watching, paths))
        done = furthest([read_progress(path) for path in paths])
        self._attempts.append(LaunchAttempt(result, result.at - started, done))
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

    def _goes_on(self, attempt: LaunchAttempt) -> bool:
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
