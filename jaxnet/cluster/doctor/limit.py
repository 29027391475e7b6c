"""A time limit on anything: a lookup of a name, a dead file server, a collective that nobody joins."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_THREAD = "jaxnet-within"


class TimedOut(Exception):
    """It took longer than it may; a thread of this process still waits for it."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """What `function` returns or raises, or `TimedOut`.

    Nothing can end a thread that waits in the kernel: it is left behind, and while `any_left` the process must end
    by `os._exit`.

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
    thread.join()  # it has answered, and must not be among those that are left
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def any_left() -> bool:
    """Whether a thread of `within` still waits."""
    return any(thread.name == _THREAD for thread in threading.enumerate())
