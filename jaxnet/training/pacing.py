"""Keeps the device busy and the host a few steps ahead, and measures without holding up dispatch."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxnet.parallel import Step
from jaxnet.parallel.device_step import SKIPPED
from jaxnet.parallel.state import TrainState

# Steps that may be dispatched and unfinished: enough that the device never waits for the host, few enough
# that a stop signal is obeyed soon and batches do not pile up.
IN_FLIGHT = 2


class PacedStep:
    """A step for loops that wait for nothing: a call waits until fewer than two of the calls before are in flight.

    XLA:CPU starts 32 programs at a time. The 33rd waits, in threads that the collectives of those before it need, and
    then all wait for ever. On other devices batches would pile up.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._pending: deque[dict[str, jax.Array]] = deque()

    def __call__(self, state: TrainState, batch: Any, /) -> tuple[TrainState, dict[str, jax.Array]]:
        """One step; the state is donated."""
        while len(self._pending) >= IN_FLIGHT:
            jax.block_until_ready(self._pending.popleft())
        state, metrics = self._step(state, batch)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(metrics)):
            self._pending.append(metrics)
        return state, metrics

    def lower(self, state: TrainState, batch: Any, /) -> Any:
        """The program, to be compiled or read; what is compiled of it is not paced."""
        return self._step.lower(state, batch)

    @property
    def trace(self) -> Any:
        """Traces the program; AttributeError of a step in pieces, which is no single one."""
        step: Any = self._step
        return step.trace


class LogLine(NamedTuple):
    """Means over the steps since the line before, up to and including `step`, but for those skipped: their number."""

    step: int
    values: dict[str, float]


class Pace:
    """Takes the metrics of each step as it is dispatched, and reads them when the device has them.

    Reading waits only while more than two steps are in flight, so the device always has work. A line of means
    comes out for every `every` steps, once the last of them is done: two steps after it was dispatched. Its times
    are those of the clock since the line before, so a line never waited longer than it lasted.

    Args:
        every: steps a line.
        reported: makes the metrics that are shown of the means, as `Task.reported` does.

    Attributes:
        seconds: spent on training steps, without pauses, up to the last line.
        waited: part of them in which a batch was made and the devices had nothing to do when it came.
        blocked: spent waiting for the devices.
    """

    def __init__(self, every: int, reported: Callable[[Mapping[str, float]], dict[str, float]] = dict) -> None:
        self._every, self._reported = every, reported
        self._pending: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self._begin_window(time.perf_counter())
        self.seconds = 0.0
        self.waited = 0.0
        self.blocked = 0.0

    def push(self, step: int, metrics: dict[str, jax.Array], waited: float) -> Iterator[LogLine]:
        """Step number `step` (from 1) was dispatched; the devices waited `waited` seconds for its batch."""
        self._waited += waited
        self._pending.append((step, metrics))
        while len(self._pending) > IN_FLIGHT:
            yield from self._finish()

    def is_idle(self) -> bool:
        """Whether the devices have done all steps that were dispatched."""
        # is_ready is a method of JAX's arrays that the type of jax.Array does not declare.
        arrays: list[Any] = list(self._pending[-1][1].values()) if self._pending else []
        return all(array.is_ready() for array in arrays)

    def drain(self, *, last: bool = False) -> Iterator[LogLine]:
        """Wait until all dispatched steps are done; the `last` line may hold fewer steps."""
        while self._pending:
            yield from self._finish()
        if last and self._done:
            yield self._line()

    def forget(self) -> None:
        """Leave out of the next line the steps since the last one, which are done again. Drain first."""
        now = time.perf_counter()
        self.seconds += now - self._started
        self.waited += self._waited
        self._begin_window(now)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for what is not training, such as an evaluation. Drain first."""
        stopped = time.perf_counter()
        yield
        self._started += time.perf_counter() - stopped

    def _finish(self) -> Iterator[LogLine]:
        self._step, metrics = self._pending.popleft()
        asked = time.perf_counter()
        self._done.append(jax.block_until_ready(metrics))
        self.blocked += time.perf_counter() - asked
        if self._step % self._every == 0:
            yield self._line()

    def _line(self) -> LogLine:
        now, steps = time.perf_counter(), len(self._done)
        seconds = now - self._started
        self.seconds += seconds
        self.waited += self._waited
        values = self._reported(_means(jax.device_get(self._done)))
        values |= {"step_seconds": seconds / steps, "data_wait_seconds": self._waited / steps}
        self._begin_window(now)
        return LogLine(self._step, values)

    def _begin_window(self, now: float) -> None:
        self._done: list[dict[str, jax.Array]] = []
        self._waited, self._started = 0.0, now


def _means(done: list[dict[str, Any]]) -> dict[str, float]:
    """Over the steps that were not skipped, if there is one."""
    kept = [metrics for metrics in done if not metrics.get(SKIPPED)] or done
    values = {name: sum(float(metrics[name]) for metrics in kept) / len(kept) for name in kept[0]}
    if SKIPPED in values:
        values[SKIPPED] = sum(float(metrics[SKIPPED]) for metrics in done)
    return values


# ---- The learning rate of the steps that are logged ---------------------------------------------------


_AT_ONCE = 1024


class LearningRates:
    """`rates(update)` is the learning rate of update number `update`, from 1, as Optax counts them.

    They are computed by the thousand, `every` apart: what is dispatched to a device while steps are in flight waits for
    these, and so would the loop, at every line.

    >>> rates = LearningRates(lambda step: 1.0 - step / 8, every=2)
    >>> rates(2), rates(4), rates(5)
    (0.875, 0.625, 0.5)
    """

    def __init__(self, schedule: optax.Schedule, every: int) -> None:
        self._every = every
        self._many = jax.jit(jax.vmap(schedule))
        self._compute(0, 0)

    def __call__(self, update: int) -> float:
        line, after = divmod(update, self._every)
        chunk, place = divmod(line, _AT_ONCE)
        if (chunk, after) != self._there:
            self._compute(chunk, after)
        return float(self._values[place])

    def _compute(self, chunk: int, after: int) -> None:
        lines = np.arange(chunk * _AT_ONCE, (chunk + 1) * _AT_ONCE, dtype=np.int64)
        before = np.clip(lines * self._every + after - 1, 0, np.iinfo(np.int32).max).astype(np.int32)
        self._there, self._values = (chunk, after), np.asarray(self._many(before))
