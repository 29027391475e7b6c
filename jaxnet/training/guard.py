"""Count skipped steps and loss spikes, and decide when a run must roll back, as its `Guard` says."""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxnet.config.run import Guard
from jaxnet.errors import InputError
from jaxnet.parallel.device_step import LOSS_SCALE, NOT_FINITE, SKIPPED
from jaxnet.training.pacing import IN_FLIGHT

_WINDOW = 128  # losses that a spike is judged by
_FEWEST = 32  # of them, before anything is one
_SPREADS = 6 * 1.4826  # 1.4826 times the median absolute deviation is the deviation of a normal distribution


class GuardCounts(NamedTuple):
    """Counts since the first step of a run; saved with each checkpoint, and part of the summary."""

    skipped_steps: int = 0
    loss_spikes: int = 0
    rollbacks: int = 0


class GuardState(NamedTuple):
    """What the guard saves with a checkpoint.

    Attributes:
        counts: up to this checkpoint.
        lag: updates that were skipped or rolled back; schedules count updates, so they are this far behind the steps.
        row: the steps skipped in a row, up to this checkpoint.
        wrong: what was not finite in the last of them.
        source: of the last rollback, until a step is good again.
    """

    counts: GuardCounts = GuardCounts()
    lag: int = 0
    row: tuple[int, ...] = ()
    wrong: str = ""
    source: int | None = None

    @classmethod
    def saved(cls, extra: Mapping[str, Any]) -> "GuardState":
        """Read it from the `extra` of a checkpoint; what an older version did not save is as at first."""
        told = extra.get("guard", {})
        counts = GuardCounts(**{name: told[name] for name in GuardCounts._fields if name in told})
        others = {name: told[name] for name in cls._fields if name in told}
        return cls(counts, **{**others, "row": tuple(others.get("row", ()))})

    def to_save(self) -> dict[str, Any]:
        """For the `extra` of a checkpoint, as "guard"."""
        state = self._asdict()
        return {**state.pop("counts")._asdict(), **state}


class GuardMonitor:
    """Reads the metrics of every step, two steps behind their dispatch, so that the loop never waits for it.

    All processes read the same metrics of the same steps, so they decide alike without communication.

    Attributes:
        past: what is known of the steps that are done.
        limit: if the run must roll back: the newest step whose checkpoint may be used; else None.
    """

    def __init__(
        self,
        config: Guard,
        names: Sequence[str],
        past: GuardState = GuardState(),  # noqa: B008 (a constant)
        is_shared: Callable[[int], bool] = lambda step: True,
    ) -> None:
        """`names`: the leaf that each element of the metric `not_finite` is about.

        `is_shared(step)`: whether metrics of the step are the same on all processes; others do not count towards a
        rollback.
        """
        self._config = config
        self._names = names
        self._is_shared = is_shared
        self._pending: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self._judged, self._limit, self._high = 0, math.inf, False
        self.past = past
        self.limit = self._limit_of_row()

    @property
    def counts(self) -> GuardCounts:
        """Counts so far."""
        return self.past.counts

    def lag_at(self, step: int) -> int:
        """The lag of schedules after `step`, which is done though its metrics may not have been examined yet.

        Under local SGD it is that of the first copy.
        """
        return self.past.lag + sum(_is_skipped(metrics) for number, metrics in self._pending if number <= step)

    def push(self, step: int, metrics: dict[str, jax.Array]) -> Iterator[str]:
        """Step number `step` (from 1) was dispatched. Yields a line for each problem in the steps that are done."""
        self._pending.append((step, metrics))
        while len(self._pending) > IN_FLIGHT:
            yield from self._examine(*self._pending.popleft())

    def drain(self) -> Iterator[str]:
        """Wait for all dispatched steps, and yield a line for each problem."""
        while self._pending:
            yield from self._examine(*self._pending.popleft())

    def rolled_back(self, source: int, step: int, lag: int = 0) -> str:
        """Note a rollback after `step` steps to the checkpoint of step `source`; returns the line that says so.

        `lag` is that of the checkpoint.
        """
        row = self.past.row
        what = f"{self.past.wrong} not finite in {len(row)} steps in a row ({row[0]} to {row[-1]})"
        self._record(lag + step - source, rollbacks=1)
        self.past, self.limit = self.past._replace(row=(), wrong="", source=source), None
        return f"{what}: back to the checkpoint of step {source}, on with the examples after step {step}"

    def cannot_roll_back(self, why: str) -> InputError:
        """The error that ends a run which cannot roll back, because of `why`."""
        row = self.past.row
        return InputError(
            f"stopped at step {row[-1]}: {self.past.wrong} not finite in {len(row)} steps in a row (from step "
            f"{row[0]} on), and {why}; lower optimizer.learning_rate, set optimizer.clip_norm, or look at the "
            "examples of these steps"
        )

    def rewound(self, saved: GuardState) -> None:
        """Note that the run repeats the steps after a checkpoint with `saved`: devices held different states."""
        self.past = saved._replace(counts=self.counts)
        self._record(saved.lag, rollbacks=1)
        self._pending.clear()
        self._losses.clear()
        self._judged, self._limit, self._high = 0, math.inf, False
        self.limit = self._limit_of_row()

    def _examine(self, step: int, metrics: dict[str, jax.Array]) -> Iterator[str]:
        skipped = float(metrics[SKIPPED]) if SKIPPED in metrics else 0.0
        if not skipped:
            yield from self._judge(step, float(metrics["loss"]))
        if skipped:
            self._record(self.past.lag + _is_skipped(metrics), skipped_steps=1)
            found = np.asarray(metrics[NOT_FINITE])
            wrong = _listed([name for name, bad in zip(self._names, found, strict=True) if bad])
            self.past = self.past._replace(wrong=wrong)
            if LOSS_SCALE in metrics and (scale := float(metrics[LOSS_SCALE])) > 1 and not found[0]:
                # That is how a scale is found: no sign of anything wrong.
                change = f"loss scale {scale:g} -> {scale / 2:g}"
                yield f"step {step}: skipped, the gradient was too large for float16; {change}"
                return
            if not self.past.row:
                yield f"step {step}: skipped, {wrong} not finite"
        if self._is_shared(step):
            self._count(step, skipped > 0)

    def _record(self, lag: int, **more: int) -> None:
        counts = {name: value + more.get(name, 0) for name, value in self.counts._asdict().items()}
        self.past = self.past._replace(counts=GuardCounts(**counts), lag=lag)

    def _count(self, step: int, skipped: bool) -> None:
        if self.limit is not None:
            return  # decided already: the steps in flight change nothing
        if not skipped:
            self.past = self.past._replace(row=(), wrong="", source=None)
            return
        self.past = self.past._replace(row=(*self.past.row, step))
        self.limit = self._limit_of_row()

    def _limit_of_row(self) -> int | None:
        row, source = self.past.row, self.past.source
        if len(row) < self._config.rollback_after:
            return None
        # If nothing was good since the last rollback, what it went back to was no better.
        return row[0] - 1 if source is None else min(row[0] - 1, source - 1)

    def _judge(self, step: int, loss: float) -> Iterator[str]:
        if self._judged % _FEWEST == 0:
            self._limit = spike_limit(self._losses)
        high, self._high = self._high, loss > self._limit
        if self._high:
            self._record(self.past.lag, loss_spikes=1)
            if not high:
                yield f"step {step}: the loss is {loss:.4g}, a spike: above {self._limit:.4g}"
        if math.isfinite(loss):
            self._losses.append(loss)
            self._judged += 1


def _is_skipped(metrics: Mapping[str, Any]) -> bool:
    """Whether every copy skipped the step."""
    return float(metrics.get(SKIPPED, 0.0)) >= 1.0


def spike_limit(losses: Sequence[float] | deque[float]) -> float:
    """What a loss must exceed to be a spike: the median and six deviations more; infinite with fewer than 32.

    The deviation is 1.4826 MAD, but at least a hundredth of the median: where losses hardly differ, any would be one.

    >>> spike_limit([1.0, 3.0] * 16)
    10.8956
    """
    if len(losses) < _FEWEST:
        return math.inf
    median = statistics.median(losses)
    spread = statistics.median(abs(loss - median) for loss in losses)
    return median + _SPREADS * max(spread, 0.01 * abs(median))


def _listed(names: Sequence[str]) -> str:
    """Up to three names, and the verb: 'a, b and 2 more were'."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    shown = ", ".join(names[:3]) or "a loss or gradient of another device"
    return f"{shown}{more} {'was' if len(names) <= 1 else 'were'}"
