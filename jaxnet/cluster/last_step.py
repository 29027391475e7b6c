"""Let all processes stop after the same step, once one of them has been told to.

JAX's preemption service does this as well, but its question, asked after each step, waits for the other processes
while it holds Python's lock. When one is dead, no thread of the asking process can run any more, and no watchdog
can end it.
"""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import jax

from jaxnet.cluster import coordination

_LOOK_SECONDS = 0.5  # between two looks for the notice of another process
_COLLECT_SECONDS = 0.02
_LEAVE_SECONDS = 5.0
_PATIENCE_SECONDS = 900.0  # who waits for a dead process is ended by others before that
_created = itertools.count()  # all processes create them in the same order


class LastStep:
    """Agrees on the last step from a thread of its own; all processes create it, start it, and ask after each step.

    When one is told, all hold their next question until each has said how often it has asked. The last step is one
    behind the furthest. Process 0 adds that up, since it serves the others and answers itself at once.

    Args:
        index: the number of this process.
        count: how many there are.
        told: whether this one was told to stop.
    """

    def __init__(self, index: int, count: int, told: Callable[[], bool]) -> None:
        self._index, self._count, self._told = index, count, told
        self._folder = f"jaxnet/stop/{next(_created)}"
        self._asked = 0
        self._last: int | None = None
        self._holding = threading.Lock()
        self._over, self._well = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="last step", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask(self) -> bool:
        """Whether the step just done is the last one; True from then on."""
        with self._holding:
            self._asked += 1
            return self._last is not None and self._asked >= self._last

    def close(self, *, well: bool) -> None:
        """Ask no more. If all goes `well` here, nobody waits for this process from now on."""
        self._well = well
        self._over.set()
        if well:
            self._thread.join(_LEAVE_SECONDS)

    def _watch(self) -> None:
        with suppress(jax.errors.JaxRuntimeError):  # the service has gone: others will say why
            while not self._over.wait(_LOOK_SECONDS):
                if self._told():
                    coordination.republish(f"{self._folder}/notice/{self._index}", "told")
                if self._told() or coordination.read_all(f"{self._folder}/notice"):
                    with self._holding:
                        self._last = self._agreed()
                    return
            if self._well:
                self._say_asked()
                if self._index == 0:
                    self._decide(self._asked + 1)  # others that are told now end where this one does

    def _agreed(self) -> int | None:
        self._say_asked()
        if self._index == 0:
            while len(asked := coordination.read_all(f"{self._folder}/asked")) < self._count:
                time.sleep(_COLLECT_SECONDS)
            self._decide(max(map(int, asked.values())) + 1)
        last = coordination.await_value(f"{self._folder}/last", _PATIENCE_SECONDS)
        return None if last is None else int(last)

    def _say_asked(self) -> None:
        coordination.republish(f"{self._folder}/asked/{self._index}", str(self._asked))

    def _decide(self, last: int) -> None:
        coordination.republish(f"{self._folder}/last", str(last))
