"""Run the processes of one job as one: prefixed output, one fails and all end, signals reach all."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from jaxnet.cluster.environment import ranks as named
from jaxnet.errors import drop, say

_TETHER = [sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py"))]
_LONGEST_LINE = 1 << 20  # a longer one is shown in pieces, so that output without line ends fills no memory
_LONGEST_QUOTE = 2000
_DRAIN_SECONDS = 2.0
FORWARDED = (signal.SIGINT, signal.SIGTERM)
"""What a launcher passes on to what it started."""


@dataclass(frozen=True)
class Rank:
    """One process to run: its number in the job, its command, its whole environment, its host if that is another."""

    index: int
    command: Sequence[str]
    environment: Mapping[str, str]
    where: str = ""


@dataclass(frozen=True)
class Ended:
    """A process that ended; `returncode` as subprocess gives it, a negative one being a signal."""

    index: int
    returncode: int
    seconds: float
    where: str = ""


@dataclass(frozen=True)
class ChildResult:
    """How a job ended.

    Attributes:
        failure: the first that failed, or None.
        others: how many still ran then, and were ended.
        at: when it failed, or the job ended, as `time.monotonic` has it.
        last_line: the last that the one that failed wrote to stderr.
        signalled: whether this process was told to end the job, or nobody reads its output any more.
        stopped: whether what ran beside it had it stop.
    """

    failure: Ended | None
    others: int
    at: float
    last_line: str
    signalled: bool
    stopped: bool = False


Stop = Callable[[], None]
Beside = Callable[[Stop], AbstractContextManager[None]]
_STOP, _UNREAD = "stop", "unread"


def supervise(ranks: Sequence[Rank], grace_seconds: float = 10.0) -> int:
    """As `run_together`, and says what failed; the result is the exit status of the first that failed, or 0."""
    result = run_together(ranks, grace_seconds)
    if result.failure is None:
        return 0
    say(f"launch: {describe(result.failure, result.others)}")
    return exit_status(result.failure.returncode)


def run_together(ranks: Sequence[Rank], grace_seconds: float = 10.0, beside: Beside | None = None) -> ChildResult:
    """Run `ranks` until all have ended.

    Every line of output is passed on at once, behind `[index] `. When one fails, the others get SIGTERM and,
    after `grace_seconds`, SIGKILL with everything that they started. (JAX handles SIGTERM, so a rank that is
    stuck in a collective does not die of it.) SIGINT and SIGTERM are passed on to the ranks themselves, not
    to what they started: a data worker that is ended first would break its rank's orderly stop. A second
    signal kills. Nothing survives this process, see `jaxnet.operations.tether`.

    `beside` is entered while they run, with a function that asks all to stop in good order, by SIGTERM.
    """
    job = _Job(grace_seconds)
    other = beside(lambda: job.events.put(_STOP)) if beside else nullcontext()
    with signals_to(lambda number: job.events.put(signal.Signals(number))), other:
        for rank in ranks:
            job.launch(rank)
        job.watch()
    job.finish()
    return job.result()


def exit_status(returncode: int) -> int:
    """The status that a shell reports: 128 + n for signal n.

    >>> exit_status(-9), exit_status(2)
    (137, 2)
    """
    return 128 - returncode if returncode < 0 else returncode


def describe(ended: Ended, others: int) -> str:
    """One line about the first failure.

    >>> describe(Ended(1, -9, 12.34), 1)
    'rank 1 was killed by SIGKILL (9) after 12.3 s; ended the other 1'
    """
    rest = f"; ended the other {others}" if others else ""
    return how_it_ended(ended) + rest


def how_it_ended(ended: Ended) -> str:
    """Which rank, how, and after how long.

    >>> how_it_ended(Ended(0, 2, 1.0))
    'rank 0 exited with status 2 after 1.0 s'
    >>> how_it_ended(Ended(1, 255, 1.0, "node2"))
    'rank 1 on node2 exited with status 255 after 1.0 s'
    """
    if ended.returncode < 0:
        how = f"was killed by {signal.Signals(-ended.returncode).name} ({-ended.returncode})"
    else:
        how = f"exited with status {ended.returncode}"
    where = f" on {ended.where}" if ended.where else ""
    return f"rank {ended.index}{where} {how} after {ended.seconds:.1f} s"


class _Job:
    """The processes that run, and what has happened to them, as events from one thread each."""

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        # SimpleQueue: a signal handler may put into it at any moment.
        self.events: queue.SimpleQueue[Ended | signal.Signals | str] = queue.SimpleQueue()
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._failure: Ended | None = None
        self._others = 0
        self._at = 0.0
        self._last_lines: dict[int, bytes] = {}
        self._deadline: float | None = None
        self._signalled = self._stopped = False
        self._unread = False
        self._pumps: list[threading.Thread] = []
        self._writing = threading.Lock()
        reading, self._pipe = os.pipe()
        self._keeper = subprocess.Popen(
            [*_TETHER, "keep"],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)

    def launch(self, rank: Rank) -> None:
        process = subprocess.Popen(
            [*_TETHER, "rank", str(self._pipe), str(os.getpid()), *rank.command],
            env=dict(rank.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self._pipe],
            start_new_session=True,  # its own process group, so that all it starts can be killed with it
        )
        self.running[rank.index] = process
        assert process.stdout is not None
        assert process.stderr is not None
        self._pump(rank.index, process.stdout, sys.stdout.buffer)
        self._pump(rank.index, process.stderr, sys.stderr.buffer, self._last_lines)
        threading.Thread(target=self._await_end, args=(rank, process), daemon=True).start()

    def watch(self) -> None:
        """Handle events until no process runs."""
        while self.running:
            left = None if self._deadline is None else max(self._deadline - time.monotonic(), 0)
            try:
                event = self.events.get(timeout=left)
            except queue.Empty:
                self._deadline = None
                self._kill_all()
                continue
            if isinstance(event, Ended):
                self._on_end(event)
            elif isinstance(event, signal.Signals):
                self._on_signal(event)
            elif event == _STOP:
                self._stopped = True
                self._send_all(signal.SIGTERM)
            elif not self._signalled:  # Ctrl-C ends `tee` as well, which makes no second signal of it
                self._send_all(signal.SIGTERM)
                say(f"launch: passed SIGTERM on to {named(sorted(self.running))}: nobody reads the output any more")

    def finish(self) -> None:
        """Pass on what was written last, and let the keeper go."""
        give_up = time.monotonic() + _DRAIN_SECONDS
        for pump in self._pumps:
            pump.join(max(give_up - time.monotonic(), 0))
        os.close(self._pipe)
        self._keeper.wait()

    def result(self) -> ChildResult:
        failed = -1 if self._failure is None else self._failure.index
        last_line = self._last_lines.get(failed, b"").decode(errors="replace").strip()
        at, signalled = self._at or time.monotonic(), self._signalled or self._unread
        return ChildResult(self._failure, self._others, at, last_line, signalled, self._stopped)

    def _on_end(self, ended: Ended) -> None:
        group = self.running.pop(ended.index).pid
        _kill_group(group)  # what it started and left behind
        os.write(self._pipe, f"-{group}\n".encode())
        if ended.returncode != 0 and self._failure is None:
            self._failure = ended
            self._others = len(self.running)
            self._at = time.monotonic()
            self._deadline = self._at + self.grace_seconds
            self._send_all(signal.SIGTERM)
            self._send_all(signal.SIGCONT)  # one that is stopped would not notice

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signalled:
            self._kill_all()
            return
        self._signalled = True
        self._send_all(number)
        say(f"launch: passed {number.name} on to {named(sorted(self.running))}; a second one kills")

    def _send_all(self, number: signal.Signals) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def _kill_all(self) -> None:
        for process in self.running.values():
            _kill_group(process.pid)

    def _pump(self, index: int, source: IO[bytes], sink: BinaryIO, last_lines: dict[int, bytes] | None = None) -> None:
        pump = threading.Thread(target=self._pass_on, args=(index, source, sink, last_lines), daemon=True)
        self._pumps.append(pump)
        pump.start()

    def _pass_on(self, index: int, source: IO[bytes], sink: BinaryIO, last_lines: dict[int, bytes] | None) -> None:
        prefix = f"[{index}] ".encode()
        with source:
            for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
                if last_lines is not None and line.strip():
                    last_lines[index] = line[:_LONGEST_QUOTE]
                whole = line if line.endswith(b"\n") else line + b"\n"
                with self._writing:
                    try:
                        sink.write(prefix + whole)
                        sink.flush()
                    except OSError as error:  # of a full disk, say: the line is lost, and the job goes on
                        drop(sink, error)
                        self._on_failed_write(error)

    def _on_failed_write(self, error: OSError) -> None:
        """Nobody reads us any more, as after `| head`: stop the job in good order."""
        if isinstance(error, BrokenPipeError) and not self._unread:
            self._unread = True
            self.events.put(_UNREAD)

    def _await_end(self, rank: Rank, process: subprocess.Popen[bytes]) -> None:
        started = time.monotonic()
        returncode = process.wait()
        self.events.put(Ended(rank.index, returncode, time.monotonic() - started, rank.where))


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@contextmanager
def signals_to(take: Callable[[int], None]) -> Iterator[None]:
    """Inside, `take` gets the signals that a launcher passes on, instead of ending this process by them."""
    # One that is ignored stays so: a job started in the background of a script must not end at Ctrl-C.
    caught = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _frame: take(number)) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
