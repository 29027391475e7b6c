"""Run the processes of one job as one: output gets prefixes, one failure ends all, and signals reach all."""

import errno
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, BinaryIO

from jaxnet.cluster.environment import name_ranks
from jaxnet.errors import InputError, drop, say
from jaxnet.operations.keeper import TETHER, Keeper

_LONGEST_LINE = 1 << 20  # longer ones are passed on in pieces: output without line ends must not fill the memory
_LONGEST_QUOTE = 2000  # bytes kept of the last line on stderr
# What Gloo says of every group of processes. Two threads may say it at once, one part of a line each in turn.
_GLOO_PARTS = rb"\[Gloo\] Rank |\d| is connected to | peer ranks\. ?|Expected number of connected peer ranks is : "
_NOISE = re.compile(rb"(?=.*[a-z])(" + _GLOO_PARTS + rb")+\s*")
_DRAIN_SECONDS = 2.0
FORWARDED = (signal.SIGINT, signal.SIGTERM)
"""The signals that a launcher passes on to its processes."""


@dataclass(frozen=True)
class Rank:
    """One process to run.

    Attributes:
        index: its number in the job.
        command: what it executes.
        environment: all its variables.
        where: its host, if that is not this one.
    """

    index: int
    command: Sequence[str]
    environment: Mapping[str, str]
    where: str = ""


@dataclass(frozen=True)
class Ended:
    """A process that ended; `returncode` is that of subprocess, where a negative number is a signal."""

    index: int
    returncode: int
    seconds: float
    where: str = ""


@dataclass(frozen=True)
class ChildResult:
    """How a job ended.

    Attributes:
        failure: the first process that failed, or None.
        others: how many processes still ran then, and were ended.
        at: when it failed, or when the job ended, on the clock `time.monotonic`.
        last_line: the last line that the failed process wrote to stderr.
        signalled: whether a signal told this process to end the job, or its output has lost its reader.
        stopped: whether `beside` of `run_together` stopped the job.
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
    """Run `ranks` as `run_together` does, report a failure, and return the first failed one's exit status, or 0."""
    result = run_together(ranks, grace_seconds)
    if result.failure is None:
        return 0
    announce(describe(result.failure, result.others))
    return exit_status(result.failure.returncode)


def run_together(ranks: Sequence[Rank], grace_seconds: float = 10.0, beside: Beside | None = None) -> ChildResult:
    """Run `ranks` until all have ended.

    Each line of output is passed on at once, after `[index] `. When a rank fails, the others get SIGTERM and, after
    `grace_seconds`, SIGKILL with all that they started. (JAX handles SIGTERM, so a rank stuck in a collective does not
    die of it.) SIGINT and SIGTERM are passed on to the ranks alone, not to what they started: a data worker that ends
    first would break its rank's orderly stop. A second signal kills. No rank outlives this process, see
    `jaxnet.operations.tether`.

    Args:
        ranks: the processes.
        grace_seconds: from SIGTERM to SIGKILL.
        beside: a context that is entered while they run. It gets a function that stops all in good order, by SIGTERM.

    Raises:
        InputError: this process may not open so many files.
    """
    with _enough_files(len(ranks)):
        job = _Job(grace_seconds)
    other = beside(lambda: job.events.put(_STOP)) if beside else nullcontext()
    try:
        with signals_to(lambda number: job.events.put(signal.Signals(number))), other:
            with _enough_files(len(ranks)):
                for rank in ranks:
                    job.launch(rank)
            job.watch()
    finally:
        job.finish()
    return job.result()


@contextmanager
def _enough_files(ranks: int) -> Iterator[None]:
    """Say in one line that this process may not open the pipes of so many ranks."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise InputError(
            f"the pipes of {ranks} processes take more files than can be open here, of a limit of {most:,}: "
            "allow more open files with ulimit -n, or start fewer processes"
        ) from error


def announce(line: str) -> None:
    """Print a line of the launcher's own between the lines of its processes."""
    say(f"launch: {line}")


def exit_status(returncode: int) -> int:
    """The status as a shell reports it: 128 + n for signal n.

    >>> exit_status(-9), exit_status(2)
    (137, 2)
    """
    return 128 - returncode if returncode < 0 else returncode


def describe(ended: Ended, others: int) -> str:
    """The first failure in one line.

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
    where = f" on {ended.where}" if ended.where else ""
    return f"rank {ended.index}{where} {ending(ended.returncode)} after {ended.seconds:.1f} s"


def ending(returncode: int) -> str:
    """A return code of subprocess in words.

    >>> ending(-9)
    'was killed by SIGKILL (9)'
    """
    if returncode < 0:
        named = {number.value: number.name for number in signal.Signals}
        return f"was killed by {named.get(-returncode, 'a real-time signal')} ({-returncode})"
    return f"exited with status {returncode}"


@dataclass(frozen=True)
class _KeeperEnded:
    returncode: int


class _Job:
    """The running processes of a job.

    A thread for each process waits for its end, two more copy a rank's output, and signal handlers may run at any
    moment. They put events into one queue, which `watch` handles one by one, so one thread alone decides what happens.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        # A signal handler may put into a SimpleQueue at any moment, even while `watch` waits in `get`.
        self.events: queue.SimpleQueue[Ended | _KeeperEnded | signal.Signals | str] = queue.SimpleQueue()
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
        self._keeper = Keeper(lambda returncode: self.events.put(_KeeperEnded(returncode)))

    def launch(self, rank: Rank) -> None:
        process = subprocess.Popen(
            [*TETHER, "rank", str(self._keeper.pipe), str(os.getpid()), *rank.command],
            env=dict(rank.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self._keeper.pipe],
            start_new_session=True,  # its own process group, so that all it starts can be killed with it
        )
        self.running[rank.index] = process
        self._keeper.add(process.pid)
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
            elif isinstance(event, _KeeperEnded):
                self._on_keeper_end(event.returncode)
            elif isinstance(event, signal.Signals):
                self._on_signal(event)
            elif event == _STOP:
                self._stopped = True
                self._send_all(signal.SIGTERM)
            elif not self._signalled:  # Ctrl-C ends `| tee` too; a lost reader is then no second signal
                self._send_all(signal.SIGTERM)
                announce(f"passed SIGTERM on to {name_ranks(sorted(self.running))}: nobody reads the output any more")

    def finish(self) -> None:
        """Pass on the last output and end the keeper. What still runs, after an error here, is killed."""
        self._kill_all()
        give_up = time.monotonic() + _DRAIN_SECONDS
        for pump in self._pumps:
            pump.join(max(give_up - time.monotonic(), 0))
        self._keeper.close()

    def result(self) -> ChildResult:
        failed = -1 if self._failure is None else self._failure.index
        last_line = self._last_lines.get(failed, b"").decode(errors="replace").strip()
        at, signalled = self._at or time.monotonic(), self._signalled or self._unread
        return ChildResult(self._failure, self._others, at, last_line, signalled, self._stopped)

    def _on_end(self, ended: Ended) -> None:
        group = self.running.pop(ended.index).pid
        # Kill what the rank started and left behind, then take its group back from the keeper: the kernel may give the
        # number to a new process.
        kill_group(group)
        self._keeper.forget(group)
        if ended.returncode != 0 and self._failure is None:
            self._failure = ended
            self._others = len(self.running)
            self._at = time.monotonic()
            self._deadline = self._at + self.grace_seconds
            self._send_all(signal.SIGTERM)

    def _on_keeper_end(self, returncode: int) -> None:
        what = f"the keeper, which kills all ranks if the launcher dies, {ending(returncode)}"
        if self._keeper.replace():
            announce(f"{what}; started another")
        else:
            announce(
                f"{what}; the job goes on without one: should the launcher be killed, see whether anything runs on"
            )

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signalled:
            self._kill_all()
            return
        self._signalled = True
        self._send_all(number)
        announce(f"passed {number.name} on to {name_ranks(sorted(self.running))}; a second one kills")

    def _send_all(self, number: signal.Signals) -> None:
        for process in self.running.values():
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # a stopped process would not act on the other

    def _kill_all(self) -> None:
        for process in self.running.values():
            kill_group(process.pid)

    def _pump(self, index: int, source: IO[bytes], sink: BinaryIO, last_lines: dict[int, bytes] | None = None) -> None:
        pump = threading.Thread(target=self._pass_on, args=(index, source, sink, last_lines), daemon=True)
        self._pumps.append(pump)
        pump.start()

    def _pass_on(self, index: int, source: IO[bytes], sink: BinaryIO, last_lines: dict[int, bytes] | None) -> None:
        prefix = f"[{index}] ".encode()
        with source:
            for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
                if _NOISE.fullmatch(line):
                    continue
                if last_lines is not None and line.strip():
                    last_lines[index] = line[:_LONGEST_QUOTE]
                whole = line if line.endswith(b"\n") else line + b"\n"
                with self._writing:
                    try:
                        sink.write(prefix + whole)
                        sink.flush()
                    except OSError as error:  # a full disk, say: the line is lost, the job continues
                        drop(sink, error)
                        self._on_failed_write(error)

    def _on_failed_write(self, error: OSError) -> None:
        """Stop the job in good order when its output has lost its reader, as after `| head`."""
        if isinstance(error, BrokenPipeError) and not self._unread:
            self._unread = True
            self.events.put(_UNREAD)

    def _await_end(self, rank: Rank, process: subprocess.Popen[bytes]) -> None:
        started = time.monotonic()
        returncode = process.wait()
        self.events.put(Ended(rank.index, returncode, time.monotonic() - started, rank.where))


def kill_group(group: int) -> None:
    """Kill all processes of a group, if there are any."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@contextmanager
def signals_to(take: Callable[[int], None]) -> Iterator[None]:
    """Give the signals in `FORWARDED` to `take` while inside, so that they do not end this process."""
    # Leave ignored signals alone: a shell starts background jobs with SIGINT ignored, and they must not end at Ctrl-C.
    caught = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _frame: take(number)) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
