"""A run that hangs ends, and says where it stood and for which rank it waited; once it is told to end, sooner."""

import contextlib
import faulthandler
import itertools
import os
import signal
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
from jaxnet.cluster.told import told
from jaxnet.config.run import WatchdogLimits
from jaxnet.errors import say
from jaxnet.training.compile_cache import AWAITS_ITS_TURN
from jaxnet.training.observer import Dispatched, Observer
from jaxnet.training.pacing import IN_FLIGHT

# ---- Each rank says now and then what it does, so that the others can name the one for which they wait


COMPILING = "compiling"
LEFT = "left"  # in good order: nobody waits for it any more
_LONGEST_SECONDS = 1.0
_GONE_SECONDS = 4.0  # without a sign of life, of a rank for which one that was told to end waits
_ALONE = "this process waits for nobody else"
_UNREACHED = "rank 0, through which ranks talk, does not answer"


class PeerHeartbeat:
    """Publishes what `said` gives (a step and what is done) through the coordination service, from a thread of its own.

    Where the ranks are not joined by JAX, it does nothing.
    """

    def __init__(self, said: Callable[[], tuple[int, str]], seconds: float) -> None:
        self._said, self._seconds = said, min(seconds, _LONGEST_SECONDS)
        self._stopped, self._well = threading.Event(), False
        self._thread = threading.Thread(target=self._beat, name="heartbeat to peers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, well: bool) -> None:
        """Say nothing more, or only that all went `well`; a service that does not answer is not waited for."""
        self._well = well
        self._stopped.set()
        self._thread.join(self._seconds)

    def missing(self, step: int) -> str | None:
        """Names the ranks that are silent or behind `step`, which takes a few beats; None if one of them compiles."""
        if (cluster := _joined()) is None:
            return _ALONE
        if (answers := self._read_twice(3 * self._seconds)) is None:
            return _UNREACHED
        return named_missing(*answers, cluster.process_index, cluster.process_count, step)

    def gone(self) -> str | None:
        """Names the ranks that give no sign of life for four seconds; None if there is none."""
        if (cluster := _joined()) is None:
            return None
        if (answers := self._read_twice(_GONE_SECONDS)) is None:
            return _UNREACHED
        return "; ".join(silent(*answers, cluster.process_index, cluster.process_count).values()) or None

    def _read_twice(self, apart: float) -> tuple[dict[str, str], dict[str, str]] | None:
        """All heartbeats, and again so many seconds later; None if either takes longer."""
        answers: list[dict[str, str]] = []

        def read() -> None:
            with suppress(jax.errors.JaxRuntimeError, AssertionError):  # rank 0 has gone
                answers.append(coordination.read_all("jaxnet/heartbeat"))
                self._stopped.wait(apart)
                answers.append(coordination.read_all("jaxnet/heartbeat"))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(apart)
        if answers:
            reader.join(apart)
        return (answers[0], answers[1]) if len(answers) == 2 else None

    def _beat(self) -> None:
        for number in itertools.count():
            ends = self._stopped.wait(self._seconds)
            if ends and not self._well:
                return
            if (cluster := _joined()) is not None:  # JAX ends a process that calls the service before it has joined
                step, what = self._said()
                with suppress(jax.errors.JaxRuntimeError, AssertionError):  # the service is not there any more
                    text = f"{number} {step} {LEFT if ends else what}"
                    coordination.republish(f"jaxnet/heartbeat/{cluster.process_index}", text)
            if ends:
                return


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
    problems = silent(before, after, own, count)
    for rank in (rank for rank in range(count) if rank != own and rank not in problems):
        _, done, what = after[str(rank)].split(" ", 2)
        if what == COMPILING:
            return None
        if what == LEFT:
            problems[rank] = f"rank {rank} has left"
        elif int(done) < step:
            problems[rank] = f"rank {rank} is still in {what}"
    return "; ".join(problems[rank] for rank in sorted(problems)) or "all ranks are alive and as far as this one"


def silent(before: dict[str, str], after: dict[str, str], own: int, count: int) -> dict[int, str]:
    """The ranks beside `own` that gave no sign of life between two readings and have not left, each with its words.

    >>> silent({"1": "7 26 step 27", "2": "9 60 left"}, {"1": "7 26 step 27", "2": "9 60 left"}, 0, 4)
    {1: 'rank 1 is silent (last heard of in step 27)', 3: 'rank 3 has not been heard of'}
    """
    problems = {}
    for rank in (rank for rank in range(count) if rank != own):
        now = after.get(str(rank))
        if now is None:
            problems[rank] = f"rank {rank} has not been heard of"
        elif now == before.get(str(rank)) and (what := now.split(" ", 2)[2]) != LEFT:
            problems[rank] = f"rank {rank} is silent (last heard of in {what})"
    return problems


WATCHDOG_STATUS = 79
"""The exit status of a process that its watchdog ends; sysexits.h ends at 78."""

TOLD_STATUS = 128 + signal.SIGTERM
"""That of one which SIGTERM has told to end, and which cannot end in good order."""

_WINDOW = 31  # steps of which the median is taken
_FEWEST = 5
_LONGEST_TICK_SECONDS = 1.0
_STUCK_SECONDS = 2.0  # in a step or so, where a rank is known to be gone
_COMPILER = os.path.join("jax", "_src", "compiler.py")  # noqa: PTH118 (the end of a path in a frame)


class _Stand(NamedTuple):
    """What the run is doing, how long that may take, and whether it may be saving. A new object says that it got on."""

    what: str
    step: int
    limit: float
    saves: bool = False


class Watchdog(Observer):
    """Watches one run from a thread of its own. A context manager; outside of it nothing is watched.

    >>> with Watchdog(WatchdogLimits()) as watchdog:
    ...     watchdog.stepped(1)
    ...     with watchdog.pause("an evaluation"):
    ...         pass

    Args:
        limits: of the run.
        note: takes the number of each step that was done, for a launcher.
        alive: called about every second, for whoever starts frozen processes anew.

    Attributes:
        before_leaving: called before the process ends because it was told to, and cannot end in good order.
    """

    def __init__(
        self,
        limits: WatchdogLimits,
        note: Callable[[int], None] = lambda step: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits, self._note, self._alive = limits, note, alive
        self.before_leaving: Callable[[], object] = lambda: None
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._steps = 0
        self._since: float | None = None  # the step before ended; later by what was not training
        self._stand = _Stand("start-up", 0, limits.other_seconds)
        self._closed = threading.Event()
        shortest = min(limits.floor_seconds, limits.other_seconds)
        self._tick = min(shortest / 8, _LONGEST_TICK_SECONDS)
        self._heartbeat = PeerHeartbeat(self._said, shortest / 8)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._limits.factor is not None:
            self._thread.start()
            self._heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._limits.factor is not None:
            self._thread.join()
            self._heartbeat.stop(well=error is None)

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

    def begins(self, what: str, *, saves: bool = True) -> None:
        """What is done from now on is no step."""
        self._stand = _Stand(what, self._stand.step, self._limits.other_seconds, saves)

    @contextlib.contextmanager
    def pause(self, what: str, kind: str = "other") -> Iterator[None]:
        """Inside, something else is done between two steps; its time is not the step's."""
        began, before = time.monotonic(), self._stand
        self.begins(what, saves=kind == "checkpoint")
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
        return self._stand.step, COMPILING if _is_compiling() else self._stand.what

    def _watch(self) -> None:
        seen, spent, before = self._stand, 0.0, time.monotonic()
        while not self._closed.wait(self._tick):
            self._alive()
            now = time.monotonic()
            # A process that was stopped for a while has not tried for so long.
            passed, before = min(now - before, 2 * self._tick), now
            if self._stand is not seen:
                seen, spent = self._stand, 0.0
            elif not _is_compiling():
                spent += passed
            if spent > seen.limit and (verdict := self._verdict(seen)) is not None:
                faulthandler.dump_traceback(all_threads=True)
                _end(f"watchdog: {seen.what} takes longer than {seen.limit:.3g} s: {verdict}", WATCHDOG_STATUS)
            if told.is_set() and (gone := self._gone()) is not None:
                self.before_leaving()
                last = "leaving at once, the last checkpoint counts"
                _end(
                    f"told to end by SIGTERM in {self._stand.what}, where all wait for each other, but {gone}: {last}",
                    TOLD_STATUS,
                )

    def _gone(self) -> str | None:
        """Whom nothing is heard of any more, if this process, which saves nothing now, does not get on."""
        before = self._stand
        if before.saves or _is_compiling() or (gone := self._heartbeat.gone()) is None:
            return None
        if (now := self._stand) is not before:  # it had not begun to wait
            self._closed.wait(_STUCK_SECONDS)
        stuck = self._stand is now and not now.saves and not self._closed.is_set() and not _is_compiling()
        return gone if stuck else None

    def _verdict(self, stand: _Stand) -> str | None:
        """Who is missing; None if it got on meanwhile, or waits for a rank that compiles."""
        verdict = self._heartbeat.missing(stand.step)
        return None if verdict is None or self._stand is not stand or self._closed.is_set() else verdict


def _is_compiling() -> bool:
    """Whether a thread of this process compiles. One that waits for a program of another process does not."""
    return any(_compiles(innermost) for innermost in sys._current_frames().values())


def _compiles(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not AWAITS_ITS_TURN:
        if frame.f_code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back
    return False


def _end(line: str, status: int) -> NoReturn:
    say(line)
    os._exit(status)
