"""A thread that says every few seconds that this process is alive, also while it compiles or waits."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from jaxnet.errors import InputError


class Heartbeat:
    """Calls each of `beats` every `seconds` until it is closed, from a thread of its own.

    A beat that fails for a reason of the file system is tried again at the next. An InputError, which says that the run
    may go on no more, ends the thread; who goes on in the main thread will meet it there.
    """

    def __init__(self, seconds: float, *beats: Callable[[], None]) -> None:
        self._seconds, self._beats = seconds, beats
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="heartbeat of the lock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                for beat in self._beats:
                    with contextlib.suppress(OSError):
                        beat()
            except InputError:
                return
