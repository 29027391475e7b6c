"""Keeps the device busy and the host a few steps ahead, and measures without waiting."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax

# Steps that may be dispatched and unfinished: enough that the device never waits for the host, few enough
# that a stop signal is obeyed soon and batches do not pile up.
_IN_FLIGHT = 2


@dataclass
class Window:
    """Means over the steps since the last line of the log."""

    sums: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    started: float = 0.0
    waited: float = 0.0

    def means(self) -> dict[str, float]:
        """Mean of each metric."""
        return {name: total / self.steps for name, total in self.sums.items()}


class Pace:
    """Takes the metrics of each step as it is dispatched; reads them once the device has them.

    `push` blocks only while more than two steps are in flight, so reading never holds up dispatch.
    """

    def __init__(self) -> None:
        self._pending: deque[dict[str, jax.Array]] = deque()
        self._window = Window(started=time.perf_counter())
        self.seconds = 0.0
        self.waited = 0.0

    def push(self, metrics: dict[str, jax.Array], waited: float) -> None:
        """A step was dispatched; the host had waited `waited` seconds for its batch."""
        self._pending.append(metrics)
        self._window.waited += waited
        while len(self._pending) > _IN_FLIGHT:
            self._read()

    def line(self) -> dict[str, float]:
        """Means since the last call: the metrics, step_seconds and data_wait_seconds, both per step."""
        window, now = self._window, time.perf_counter()
        seconds = now - window.started
        # Steps still in flight are counted in the next window, as is the time that they take from now on.
        self.seconds += seconds
        self.waited += window.waited
        self._window = Window(started=now)
        if not window.steps:
            return {}
        return {
            **window.means(),
            "step_seconds": seconds / window.steps,
            "data_wait_seconds": window.waited / window.steps,
        }

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for something that is not training, such as an evaluation, once all steps are done."""
        while self._pending:
            self._read()
        stopped = time.perf_counter()
        yield
        self._window.started += time.perf_counter() - stopped

    def _read(self) -> None:
        metrics = jax.device_get(self._pending.popleft())
        self._window.steps += 1
        for name, value in metrics.items():
            self._window.sums[name] = self._window.sums.get(name, 0.0) + float(value)
