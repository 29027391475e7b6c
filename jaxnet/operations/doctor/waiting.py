"""Wait with a time limit: for a function that may hang, and for what the other ranks say.

The doctor must never hang, since it looks for what makes a run hang.
"""

import json
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxnet.cluster import coordination
from jaxnet.cluster.agreement import said_by
from jaxnet.cluster.environment import name_ranks

T = TypeVar("T")

_THREAD = "jaxnet-within"
_FOLDER = "jaxnet/doctor"


class TimedOut(Exception):
    """A function took too long. A thread of this process still waits for it."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return or raise what `function` does, or raise `TimedOut` after `seconds`.

    A thread that waits in the kernel cannot be ended. It is left behind, and while `any_left` the process must end by
    `os._exit`.

    >>> within(60, lambda: 1 + 1)
    2
    """
    answer: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put((function(), None))
        except BaseException as error:
            answer.put((None, error))

    thread = threading.Thread(target=run, name=_THREAD, daemon=True)
    thread.start()
    try:
        value, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimedOut from None
    thread.join()  # `any_left` must not count a thread that has answered and is about to end
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def any_left() -> bool:
    """Whether a thread of `within` still waits."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


class Unanswered(Exception):
    """The ranks `missing` did not take part in a step, which the message names."""

    def __init__(self, missing: Sequence[int], step: str, seconds: float):
        super().__init__(f"{name_ranks(missing)} did not answer at step '{step}' within {seconds:g} s")
        self.missing = missing


@dataclass(frozen=True)
class Talk:
    """How this rank talks to the others: JSON over the coordination service.

    Each step has a unique name without a slash, and each name is used once.

    Attributes:
        rank: this one.
        count: how many there are.
        timeout_seconds: how long each step may take.
    """

    rank: int
    count: int
    timeout_seconds: float

    def gather(self, step: str, value: Any) -> list[Any]:
        """The `value` of every rank. Where some do not come, all that came raise `Unanswered`."""
        if self.count == 1:
            return [value]
        folder = f"{_FOLDER}/{step}"
        coordination.publish(f"{folder}/{self.rank}", json.dumps(value))
        complete = coordination.wait_for_all(f"{folder}-given", self.timeout_seconds)
        given = coordination.read_all(folder)
        if missing := [rank for rank in range(self.count) if str(rank) not in given]:
            raise Unanswered(missing, step, self.timeout_seconds)
        if not complete:  # the last rank came just too late, when the others had given up
            raise Unanswered(range(self.count), step, self.timeout_seconds)
        return [said_by(rank, given) for rank in range(self.count)]

    def tell(self, key: str, value: str) -> None:
        """Publish `value` for `await_told`; each key once."""
        coordination.publish(f"{_FOLDER}/{key}", value)

    def await_told(self, key: str, rank: int) -> str:
        """Wait for what `rank` tells under `key`; raise `Unanswered` when it does not come."""
        value = coordination.await_value(f"{_FOLDER}/{key}", self.timeout_seconds)
        if value is None:
            raise Unanswered([rank], key, self.timeout_seconds)
        return value
