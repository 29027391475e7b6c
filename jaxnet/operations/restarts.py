"""Restart a job that failed, or that more hosts can join: when to, with whom, and what became of each attempt."""

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

from jaxnet.cluster.progress import PROGRESS, Progress, furthest, read_progress
from jaxnet.errors import BAD_INPUT_STATUS, InputError
from jaxnet.operations.supervise import (
    ChildResult,
    Ended,
    Rank,
    Stop,
    announce,
    describe,
    exit_status,
    how_it_ended,
    run_together,
    signals_to,
)

ATTEMPT = "JAXNET_ATTEMPT"
"""The variable with the number of this attempt, from 1; set by a launcher that restarts."""

TOLD_TO_END = "it was told to end"
"""Why there is no restart after a signal."""

_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_FIRST_STEP_SECONDS = 1.0  # between two looks for an attempt's first step
_SENT_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_SENT_ON_ANOTHER_HOST = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
_CONNECTION_LOST = 255  # ssh's own status
_LONGEST_QUOTE = 160


class LaunchAttempt(NamedTuple):
    """One start of a job: how it ended, after how long, and how far it came."""

    result: ChildResult
    seconds: float
    progress: Progress | None


# ---- The decision ---------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """What follows a failure.

    Attributes:
        wait: seconds until the next attempt; None: there is none.
        why: the reason why there is none.
        fewer: whether the job might continue without the rank that failed every time.
    """

    wait: float | None
    why: str = ""
    fewer: bool = False


@dataclass
class RestartPolicy:
    """Decides after each failure whether to start again, out of a budget that progress refills.

    Progress is an attempt that began at a later step than the one before: the job saves and gets on. Steps done again
    are no progress, however many; else a job that always fails at one step would never end.

    Attributes:
        most: restarts without progress.
    """

    most: int
    _used: int = 0
    _first: int = 0
    _mistake: str | None = None
    _failed: frozenset[str] = frozenset()

    def after(self, attempt: LaunchAttempt) -> Decision:
        """What follows an attempt that failed."""
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
        """What follows when too few hosts answer. Waiting for them comes out of the same budget."""
        return self._again(fewer=False)

    def _again(self, fewer: bool) -> Decision:
        if self._used >= self.most:
            why = f"{self.most} restarts without progress are used up (--max-restarts)"
            return Decision(None, why, fewer)
        self._used += 1
        return Decision(min(_FIRST_WAIT_SECONDS * 2 ** (self._used - 1), _LONGEST_WAIT_SECONDS))


def _mistake(attempt: LaunchAttempt, failure: Ended) -> str | None:
    """The status and last line, without numbers, of a failure that would probably come again; else None.

    A rank killed from outside, or a lost connection, says nothing about the program. Neither does a failure after the
    first step, unless the status says that the input is wrong.
    """
    if _was_killed(failure) or (failure.where and failure.returncode == _CONNECTION_LOST):
        return None
    if attempt.progress is not None and failure.returncode != BAD_INPUT_STATUS:
        return None
    return f"{failure.returncode} {re.sub(r'[0-9]+', '#', attempt.result.last_line)}"


def _was_killed(failure: Ended) -> bool:
    return failure.returncode in (_SENT_ON_ANOTHER_HOST if failure.where else _SENT_FROM_OUTSIDE)


# ---- The loop -------------------------------------------------------------------------------------------


class Members(Protocol):
    """Who takes part in a job. The members may change from one attempt to the next."""

    def gather(self, attempt: int) -> Sequence[Rank] | str:
        """The processes of an attempt, or why there can be none now."""

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        """When the budget is used up: exclude someone and return, in words, who continues; None if nobody can.

        Args:
            failed: who failed last.
            always: whether no other failed.
            began: whether a step was done.
        """

    def await_more(self, over: threading.Event) -> str:
        """Wait until more could take part than now and return who, in words; empty when `over` is set or none can."""


class RestartLoop:
    """Runs a job until it ends well, may not start again, or is told to end.

    Args:
        members: who takes part.
        folder: where they write their progress.
        grace_seconds: see `run_together`.
        max_restarts: see `RestartPolicy`.
    """

    def __init__(self, members: Members, folder: Path, grace_seconds: float, max_restarts: int) -> None:
        self._members, self._folder, self._grace_seconds = members, folder, grace_seconds
        self._most, self._policy = max_restarts, RestartPolicy(max_restarts)
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._attempts: list[LaunchAttempt] = []
        self._status = 0

    def run(self) -> int:
        """Run the job; return 0, or the exit status of the rank that failed first in the last attempt.

        Raises:
            InputError: too few members ever came.
        """
        # During an attempt `run_together` takes the signals. This handler takes those that come between attempts.
        with signals_to(self._signals.put):
            while (ranks := self._gathered()) is not None and self._continues(self._attempt(ranks)):
                pass
        if len(self._attempts) > 1:
            for line in report(self._attempts):
                announce(line)
        return self._status

    def _gathered(self) -> Sequence[Rank] | None:
        """Wait for the processes of the next attempt; None: there is no next attempt."""
        while isinstance(found := self._members.gather(len(self._attempts) + 1), str):
            decision = self._policy.absent()
            if decision.wait is None and not self._attempts:
                raise InputError(f"{found}; {decision.why}")
            if decision.wait is None:
                announce(f"{found}; not started again: {decision.why}")
                self._status = self._status or 1
                return None
            announce(f"{found}; asked again in {decision.wait:g} s")
            if self._told_to_end(decision.wait):
                return None
        return None if self._told_to_end(0.0) else found

    def _attempt(self, ranks: Sequence[Rank]) -> LaunchAttempt:
        number, started = len(self._attempts) + 1, time.monotonic()
        paths = [self._folder / f"{number}-{rank.index}" for rank in ranks]
        told = [_with_attempt(rank, number, path) for rank, path in zip(ranks, paths, strict=True)]
        result = run_together(told, self._grace_seconds, functools.partial(self._watching, paths))
        done = furthest([read_progress(path) for path in paths])
        self._attempts.append(LaunchAttempt(result, result.at - started, done))
        return self._attempts[-1]

    @contextmanager
    def _watching(self, paths: Sequence[Path], stop: Stop) -> Iterator[None]:
        over = threading.Event()
        growing = threading.Thread(target=self._grow, args=(paths, stop, over), daemon=True)
        growing.start()
        if not self._signals.empty():  # it came before `run_together` took the signals
            stop()
        try:
            yield
        finally:
            over.set()
            growing.join()

    def _grow(self, paths: Sequence[Path], stop: Stop, over: threading.Event) -> None:
        """Stop the attempt when more can take part in the next, once it has done a step and so can save."""
        who = self._members.await_more(over)
        while who and not over.wait(_FIRST_STEP_SECONDS):
            if any(read_progress(path) for path in paths):
                announce(f"{who}; all save and start again, attempt {len(self._attempts) + 2}")
                stop()
                return

    def _continues(self, attempt: LaunchAttempt) -> bool:
        """Whether another attempt follows; returns when it is time for it."""
        result = attempt.result
        if result.failure is None:
            self._status = 0
            return result.stopped and not result.signalled and not self._told_to_end(0.0)
        self._status = exit_status(result.failure.returncode)
        what = describe(result.failure, result.others)
        decision = self._policy.after(attempt)
        if decision.wait is not None:
            announce(f"{what}; all start again in {decision.wait:g} s, attempt {len(self._attempts) + 1}")
            return not self._told_to_end(decision.wait)
        began = attempt.progress is not None
        if decision.why == TOLD_TO_END or not (
            others := self._members.without(result.failure, always=decision.fewer, began=began)
        ):
            announce(f"{what}; not started again: {decision.why}")
            return False
        announce(f"{what}; {decision.why}: on with {others}, attempt {len(self._attempts) + 1}")
        self._policy = RestartPolicy(self._most)
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


def _with_attempt(rank: Rank, attempt: int, progress: Path) -> Rank:
    return replace(rank, environment={**rank.environment, ATTEMPT: str(attempt), PROGRESS: str(progress)})


# ---- The report -----------------------------------------------------------------------------------------


def report(attempts: list[LaunchAttempt]) -> list[str]:
    """One line for each attempt: who failed first, how, when, at which step, and how long until the next step.

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
