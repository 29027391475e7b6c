"""A run that hangs ends, and says where it stood and for which rank it waited."""

import contextlib
import faulthandler
import itertools
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import NamedTuple, NoReturn, Self

import jax

from jaxnet.cluster import coordination
from jaxnet.cluster.start import Cluster, joined
from jaxnet.config.run import WatchdogLimits
from jaxnet.errors import say
from jaxnet.training.observer import Dispatched, Observer
from jaxnet.training.pacing import IN_FLIGHT

# ---- Each rank says now and then what it does, so that the others can name the one for which they wait


COMPILING = "compiling"
_LONGEST_SECONDS = 5.0
_ALONE = "this process waits for nobody else"


class PeerHeartbeat:
    """Publishes what `said` gives (a step and what is done) through the coordination service, from a thread of its own.

    Where the ranks are not joined by JAX, it does nothing.
    """

    def __init__(self, said: Callable[[], tuple[int, str]], seconds: float) -> None:
        self._said, self._seconds = said, min(seconds, _LONGEST_SECONDS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat to peers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Say nothing more; a service that does not answer is not waited for."""
        self._stopped.set()
        self._thread.join(self._seconds)

    def missing(self, step: int) -> str | None:
        """Names the ranks that are silent or behind `step`, which takes a few beats; None if one of them compiles."""
        if (cluster := _joined()) is None:
            return _ALONE
        answers: list[dict[str, str]] = []
        reader = threading.Thread(target=self._read_twice, args=[answers], daemon=True)
        reader.start()
        reader.join(6 * self._seconds)
        if len(answers) < 2:
            return "rank 0, through which ranks talk, does not answer"
        return named_missing(answers[0], answers[1], cluster.process_index, cluster.process_count, step)

    def _read_twice(self, answers: list[dict[str, str]]) -> None:
        try:
            answers.append(coordination.read_all("jaxnet/heartbeat"))
            self._stopped.wait(3 * self._seconds)
            answers.append(coordination.read_all("jaxnet/heartbeat"))
        except (jax.errors.JaxRuntimeError, AssertionError):
            pass  # rank 0 has gone

    def _beat(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(self._seconds):
                return
            if (cluster := _joined()) is None:
                continue  # JAX ends a process that calls the service before it has joined
            step, what = self._said()
            with suppress(jax.errors.JaxRuntimeError, AssertionError):  # the service is not there any more
                coordination.republish(f"jaxnet/heartbeat/{cluster.process_index}", f"{number} {step} {what}")


def _joined() -> Cluster | None:
    cluster = joined()
    return None if cluster is None or cluster.process_count == 1 or cluster.mpi is not None else cluster


def named_missing(before: dict[str, str], after: dict[str, str], own: int, count: int, step: int) -> str | None:
    """What two readings of all heartbeats, some beats apart, say about the ranks beside `own`, which has done `step`.

    >>> named_missing({"1": "7 26 step 27"}, {"1": "7 26 step 27"}, 0, 2, 27)
    'rank 1 is silent (last heard of in step 27)'
    >>> named_missing({"1": "7 26 step 27"}, {"1": "9 26 step 27"}, 0, 2, 27)
    'rank 1 is still in step 27'
    >>> named_missing({"1": "7 26 compiling"}, {"1": "9 26 compiling"}, 0, 2, 27) is None
    True
    """
    problems = []
    for rank in (rank for rank in range(count) if rank != own):
        now = after.get(str(rank))
        if now is None:
            problems.append(f"rank {rank} has not been heard of")
            continue
        _, done, what = now.split(" ", 2)
        if now == before.get(str(rank)):
            problems.append(f"rank {rank} is silent (last heard of in {what})")
        elif what == COMPILING:
            return None
        elif int(done) < step:
            problems.append(f"rank {rank} is still in {what}")
    return "; ".join(problems) or "all ranks are alive and as far as this one"


WATCHDOG_STATUS = 79
"""The exit status of a process that its watchdog ends; sysexits.h ends at 78."""

_WINDOW = 31  # steps of which the median is taken
_FEWEST = 5
_LONGEST_TICK_SECONDS = 1.0
_COMPILER = os.path.join("jax", "_src", "compiler.py")  # noqa: PTH118 (the end of a path in a frame)


class _Stand(NamedTuple):
    """What the run is doing, and how long that may take. A new object says that it got on."""

    what: str
    step: int
    limit: float


class Watchdog(Observer):
    """Watches one run from a thread of its own. A context manager; outside of it nothing is watched.

    >>> with Watchdog(WatchdogLimits()) as watchdog:
    ...     watchdog.stepped(1)
    ...     with watchdog.pause("an evaluation"):
    ...         pass

    Args:
        limits: of the run.
        note: takes the number of each step that was done, for a launcher.
    """

    def __init__(self, limits: WatchdogLimits, note: Callable[[int], None] = lambda step: None) -> None:
        self._limits, self._note = limits, note
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._steps = 0
        self._since: float | None = None  # the step before ended; later by what was not training
        self._stand = _Stand("start-up", 0, limits.other_seconds)
        self._main = threading.get_ident()
        self._closed = threading.Event()
        shortest = min(limits.floor_seconds, limits.other_seconds)
        self._tick = min(shortest / 8, _LONGEST_TICK_SECONDS)
        self._heartbeat = PeerHeartbeat(self._said, shortest / 8)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._limits.factor is not None:
            self._main = threading.get_ident()
            self._thread.start()
            self._heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._limits.factor is not None:
            self._thread.join()
            self._heartbeat.stop()

    def after_step(self, dispatched: Dispatched) -> None:
        """See `stepped`."""
        self.stepped(dispatched.step)

    def stepped(self, step: int) -> None:
        """Step number `step` was dispatched, and the next begins; the two before it may be unfinished."""
        now = time.monotonic()
        if self._since is not None:
            self._seconds.append(now - self._since)
        self._since = now
        self._stand = _Stand(f"step {step + 1}", step, self._step_limit())
        self._steps += 1
        if self._steps > IN_FLIGHT:
            self._note(step - IN_FLIGHT)

    def on_end(self, step: int) -> None:
        """What follows is no step."""
        self.begins("the end of the run")
        if self._steps:
            self._note(step)

    def begins(self, what: str) -> None:
        """What is done from now on is no step."""
        self._stand = _Stand(what, self._stand.step, self._limits.other_seconds)

    @contextlib.contextmanager
    def pause(self, what: str, kind: str = "other") -> Iterator[None]:
        """Inside, something else is done between two steps; its time is not the step's."""
        del kind
        began, before = time.monotonic(), self._stand
        self.begins(what)
        yield
        if self._since is not None:
            self._since += time.monotonic() - began
        self._stand = before._replace()  # another object: its time begins anew

    def _step_limit(self) -> float:
        if self._limits.factor is None or len(self._seconds) < _FEWEST:
            return self._limits.other_seconds
        return max(self._limits.factor * statistics.median(self._seconds), self._limits.floor_seconds)

    def _said(self) -> tuple[int, str]:
        """What the other ranks are told."""
        return self._stand.step, COMPILING if self._is_compiling() else self._stand.what

    def _watch(self) -> None:
        seen, spent, before = self._stand, 0.0, time.monotonic()
        while not self._closed.wait(self._tick):
            now = time.monotonic()
            # A process that was stopped for a while has not tried for so long.
            passed, before = min(now - before, 2 * self._tick), now
            if self._stand is not seen:
                seen, spent = self._stand, 0.0
            elif not self._is_compiling():
                spent += passed
            if spent > seen.limit and (verdict := self._verdict(seen)) is not None:
                _end(f"watchdog: {seen.what} takes longer than {seen.limit:.3g} s: {verdict}")

    def _verdict(self, stand: _Stand) -> str | None:
        """Who is missing; None if it got on meanwhile, or waits for a rank that compiles."""
        verdict = self._heartbeat.missing(stand.step)
        return None if verdict is None or self._stand is not stand or self._closed.is_set() else verdict

    def _is_compiling(self) -> bool:
        frame: FrameType | None = sys._current_frames().get(self._main)
        while frame is not None:
            if frame.f_code.co_filename.endswith(_COMPILER):
                return True
            frame = frame.f_back
        return False


def _end(line: str) -> NoReturn:
    faulthandler.dump_traceback(all_threads=True)
    say(line)
    os._exit(WATCHDOG_STATUS)
