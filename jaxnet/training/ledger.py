"""Where the time of a run goes: `ledger.jsonl`, which a kill at any instant leaves right to within a few seconds.

Each line is all that an attempt had to say about itself when it was written; of an attempt, the last line counts.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxnet.errors import InputError
from jaxnet.report.goodput import Attempt, Goodput, RankTimes, attempt_json, goodput, read_ledger
from jaxnet.training.observer import Dispatched, Observer
from jaxnet.training.records import AppendOnlyFile, cut_half_line


def process_start() -> float:
    """When this process was started, in seconds since 1970, where the system tells it; else now."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - max(0.0, up - ticks / os.sysconf("SC_CLK_TCK"))


class Ledger(Observer):
    """The time of one attempt, at any moment of one kind; written once it is opened, on the process that opens it.

    >>> ledger = Ledger()
    >>> with ledger.during("compile"):
    ...     pass
    >>> sorted(ledger.seconds())
    ['compile', 'start-up']
    """

    def __init__(self, start: float | None = None) -> None:
        now = time.time()
        self._start = now if start is None else start
        self._clock = time.perf_counter() - (now - self._start)  # of the start; time.time() may be set back
        self._seconds: dict[str, float] = defaultdict(float)
        self._kind, self._since = "start-up", self._clock
        self._first: int | None = None
        self._step = 0
        self._ranks: Sequence[RankTimes] = ()
        self._path: Path | None = None
        self._file: AppendOnlyFile | None = None
        self._guard, self._writing = threading.RLock(), threading.Lock()

    def open(self, path: Path, *, fence: Callable[[], None] = lambda: None) -> None:
        """Begin to write, after what earlier attempts have written; OSError if that cannot be done."""
        cut_half_line(path)
        before = read_ledger(path) if path.exists() else []
        self._number = 1 + max((attempt.attempt for attempt in before), default=0)
        self._path, self._file = path, AppendOnlyFile(path, fence=fence)
        self.beat()

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """What is spent inside is of that kind, and not of the one around it."""
        before = self._kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    def enter(self, kind: str) -> None:
        """From now on time is of that kind."""
        with self._guard:
            self._count()
            self._kind = kind

    @contextlib.contextmanager
    def pause(self, what: str, kind: str) -> Iterator[None]:
        """See `during`."""
        del what
        with self.during(kind):
            yield

    def after_step(self, dispatched: Dispatched) -> None:
        """Count the step; of its time, what was waiting for the batch is of its own kind."""
        with self._guard:
            self._move("step", "data wait", dispatched.waited)
            self._step = dispatched.step

    def began(self, step: int) -> None:
        """Training begins after `step` steps."""
        with self._guard:
            self._first = self._step = step

    def on_rewind(self, step: int) -> None:
        """The steps after `step` are done again, by this attempt."""
        with self._guard:
            self._count()
            done = self._step - (self._first or 0)
            if done > 0:
                self._move("step", "lost work", self._seconds["step"] * (self._step - step) / done)
            self._step = step

    def compared(self, ranks: Sequence[RankTimes]) -> None:
        """What each rank needs for a step."""
        with self._guard:
            self._ranks = ranks

    def seconds(self) -> dict[str, float]:
        """Spent so far, by kind."""
        with self._guard:
            self._count()
            return dict(self._seconds)

    def beat(self, *, ended: bool = False) -> None:
        """Write a line, if the ledger is open here."""
        with self._writing:
            if self._file is None:
                return
            with self._guard:  # not while a slow disk takes the line: every step waits for it
                said = json.dumps(attempt_json(self._as_attempt(ended=ended)))
            self._file.append((said + "\n").encode())

    def close(self) -> Goodput | None:
        """Write the last line; the account of all attempts, where it can be read."""
        if self._file is None or self._path is None:
            return None
        self.beat(ended=True)
        with self._writing:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError, InputError):  # a run that was refused has no account
            return goodput(read_ledger(self._path))
        return None

    def _as_attempt(self, *, ended: bool) -> Attempt:
        seconds = {kind: round(value, 3) for kind, value in self.seconds().items()}
        now = self._start + time.perf_counter() - self._clock
        where = (self._number, socket.gethostname(), os.getpid())
        return Attempt(
            *where, round(self._start, 3), round(now, 3), self._first, self._step, seconds, ended, self._ranks
        )

    def _count(self) -> None:
        now = time.perf_counter()
        self._seconds[self._kind] += now - self._since
        self._since = now

    def _move(self, kind: str, to: str, seconds: float) -> None:
        self._count()
        moved = min(seconds, self._seconds[kind])
        self._seconds[kind] -= moved
        self._seconds[to] += moved
