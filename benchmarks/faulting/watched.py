"""A job that is watched from outside: its lines with the time at which each came, its ranks, and its end."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

PATIENCE_SECONDS = 600.0  # without a line: a job that is only slow, on a busy machine, does not count as hanging
_POLL_SECONDS = 0.02


class Unmet(Exception):
    """What should have happened did not."""


class Line(NamedTuple):
    """What a job printed, on either stream, and when, as `time.monotonic` has it."""

    at: float
    text: str


class Watched:
    """A process in a session of its own; killed on leaving, and all that it started with it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.lines: list[Line] = []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(5)

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "\n".join(f"{line.at - self.began:8.3f} {line.text}" for line in self.lines)

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self.lines.append(Line(time.monotonic(), line.decode(errors="replace").rstrip("\n")))

    def find(self, pattern: str, since: float = 0.0) -> list[tuple[Line, re.Match[str]]]:
        """The lines so far, from a time on, in which the pattern is found."""
        there = [line for line in list(self.lines) if line.at >= since]
        return [(line, match) for line in there if (match := re.search(pattern, line.text))]

    def wait_for(self, pattern: str, since: float = 0.0, count: int = 1) -> tuple[Line, re.Match[str]]:
        """The first such line, or that number of them, once it has come."""
        begun = time.monotonic()
        while len(found := self.find(pattern, since)) < count:
            if self._is_silent(begun) or not any(reader.is_alive() for reader in self._readers):
                raise Unmet(f"there is no line {pattern!r} (or less than {count})")
            time.sleep(_POLL_SECONDS)
        return found[count - 1]

    def wait_for_step(self, since: float = 0.0, count: int = 1) -> Line:
        """The line of the first step, or of that number of them, that rank 0 did from a time on."""
        return self.wait_for(r"^\[0\] step +\d+/", since, count)[0]

    def rank(self, number: int) -> int:
        """The process of a rank, once it is there."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            for process in descendants(self.pid):
                if _is_rank(process, number):
                    return process
            if time.monotonic() > until or self._process.poll() is not None:
                raise Unmet(f"there is no rank {number}")
            time.sleep(_POLL_SECONDS)

    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def finish(self) -> int:
        """Wait for its end; the exit status."""
        begun = time.monotonic()
        while (status := self._process.poll()) is None:
            if self._is_silent(begun):
                raise Unmet("it does not end")
            time.sleep(_POLL_SECONDS)
        for reader in self._readers:
            reader.join(5)
        return status

    def _is_silent(self, since: float) -> bool:
        """Whether it has long said nothing."""
        last = max([since, *(line.at for line in self.lines[-1:])])
        return time.monotonic() > last + PATIENCE_SECONDS


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, and those that they did, parents first."""
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def words(pid: int) -> list[str]:
    """The command line of a process; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _is_rank(pid: int, number: int) -> bool:
    try:
        return f"JAX_PROCESS_ID={number}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
