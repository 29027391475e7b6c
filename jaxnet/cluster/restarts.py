"""Whether a job that failed is started again, and when: a budget that progress refills, and a growing wait."""

import re
import signal
from dataclasses import dataclass
from typing import NamedTuple

from jaxnet.cluster.progress import Progress
from jaxnet.cluster.supervise import Ended, Result, how_it_ended
from jaxnet.errors import BAD_INPUT_STATUS

_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_SENT_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_SENT_ON_ANOTHER_HOST = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
_CONNECTION_LOST = 255  # as ssh says it
_LONGEST_QUOTE = 160
TOLD_TO_END = "it was told to end"


class Attempt(NamedTuple):
    """One start of a job: how it ended, after how long, and what it did."""

    result: Result
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

    def after(self, attempt: Attempt) -> Decision:
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


def report(attempts: list[Attempt]) -> list[str]:
    """A line for each attempt: who failed first, how, when, at which step, and how long until the next step.

    >>> killed = Result(Ended(1, -9, 12.3), 1, 100.0, "", False)
    >>> done = Result(None, 0, 130.0, "", False)
    >>> tries = [Attempt(killed, 12.3, Progress(1, 90.0, 27)), Attempt(done, 20.0, Progress(21, 108.5, 60))]
    >>> print(*report(tries), sep="\\n")
    attempt 1: rank 1 was killed by SIGKILL (9) after 12.3 s, at step 27; the next step came 8.5 s later
    attempt 2: ended well after 20.0 s, at step 60
    """
    return [f"attempt {index + 1}: {_line(attempts[index:])}" for index in range(len(attempts))]


def _line(attempts: list[Attempt]) -> str:
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


def _mistake(attempt: Attempt, failure: Ended) -> str | None:
    """What makes a failure one that would come again: its way and words, without the numbers in them."""
    if _was_killed(failure) or (failure.where and failure.returncode == _CONNECTION_LOST):
        return None
    if attempt.progress is not None and failure.returncode != BAD_INPUT_STATUS:
        return None
    return f"{failure.returncode} {re.sub(r'[0-9]+', '#', attempt.result.last_line)}"


def _was_killed(failure: Ended) -> bool:
    return failure.returncode in (_SENT_ON_ANOTHER_HOST if failure.where else _SENT_FROM_OUTSIDE)
