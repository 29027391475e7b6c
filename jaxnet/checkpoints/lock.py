"""One run at a time in a directory: a lock whose owner is named, and which a killed run leaves without harm.

    lock/000003.json    the owner; the file's time is its last sign of life
    lock/000003.free    the same, given back

Nobody deletes or changes the lock of another. Who takes over creates the next number, which a file system lets only
one process do; so of two that take over at once one fails. A run that was thought dead, because its machine slept or
its network was gone, finds a higher number than its own, and writes nothing any more.
"""

import contextlib
import fcntl
import getpass
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from jaxnet.errors import InputError

# ---- Who holds a directory: a process, told so that another process, perhaps on another host, can judge if it lives


class Owner(NamedTuple):
    """A process.

    Attributes:
        host: name of its host.
        pid: its number there.
        user: who runs it.
        since: when it took what it holds, as text.
        machine: the start of the operating system and the process namespace in which `pid` counts; "" if unknown.
        boot: the start of the operating system alone; "" if unknown.
        started: when the process started, as that system counts, so that a later one with the same pid is not it.
        locked: whether it holds the file's lock of the operating system.
    """

    host: str
    pid: int
    user: str
    since: str
    machine: str
    boot: str
    started: str
    locked: bool

    @classmethod
    def this(cls, *, locked: bool) -> Self:
        """This process."""
        boot = _text(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        namespace = _text(lambda: str(Path("/proc/self/ns/pid").readlink()))
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            user=_user(),
            since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            machine=f"{boot} {namespace}" if boot and namespace else "",
            boot=boot,
            started=started(os.getpid()),
            locked=locked,
        )

    @classmethod
    def read(cls, path: Path) -> "Owner | None":
        """Whom a file names; None where it is not (yet) whole."""
        try:
            owner = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return owner if isinstance(owner.pid, int) else None

    def runs(self) -> bool | None:
        """Whether that process runs; None where this one cannot see it: on another host, in another container."""
        if not self.machine or self.machine != self.this(locked=False).machine:
            return None
        return started(self.pid) == self.started != ""

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.user} on host {self.host} since {self.since}"


def started(pid: int) -> str:
    """When a process of this machine started, in its own count; "" if it is not there or has ended."""
    stat = _text(lambda: Path(f"/proc/{pid}/stat").read_text())
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return "" if not fields or fields[0] in "ZX" else fields[19]


def _user() -> str:
    return _text(getpass.getuser) or str(os.getuid())


def _text(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, KeyError):
        return ""


BEAT_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
_HELD, _FREE = ".json", ".free"

_log = logging.getLogger("jaxnet")


class Lost(InputError):
    """Another run has taken over the directory; this one may not write there."""


class Lock:
    """The right to write in `directory`, from now on. Call `beat` every `BEAT_SECONDS` while holding it.

    Another run's lock is in the way while that run lives. On the same machine the system says whether it does. On
    another host its file is watched: if its time changes, the run lives; if it has not changed for `patience` seconds,
    this run takes over.

    Raises InputError, naming the owner, when the directory is in use, and when it cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        patience: float = _PATIENCE_SECONDS,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self._directory, self._place = directory, directory / "lock"
        self._patience, self._say = patience, say
        try:
            self._place.mkdir(exist_ok=True)
            while not self._taken():
                pass  # another run was faster: look at that one
        except OSError as error:
            raise InputError(
                f"{directory} cannot be locked against a second run: {error.strerror}; mend that, or use another one"
            ) from error

    def beat(self) -> None:
        """Give a sign of life."""
        os.utime(self._file)

    def require(self) -> None:
        """Return if this run still holds the lock; raises Lost, and OSError when the directory cannot be read."""
        names = [path.name for path in self._place.iterdir()]
        newest = max(map(_number, names), default=0)
        if newest > self._number:
            taker = Owner.read(self._path(newest, _HELD)) or "another run"
            raise Lost(f"{self._directory} was taken over by {taker}; this run stops and writes nothing there")
        if self._path(self._number, _HELD).name not in names:
            raise Lost(f"the lock of this run, {self._path(self._number, _HELD)}, was removed; this run stops")

    def release(self) -> None:
        """Give it back; never fails, because a lock that stays is found to be that of a process that has ended."""
        with contextlib.suppress(OSError):
            self._path(self._number, _HELD).rename(self._path(self._number, _FREE))
        os.close(self._file)

    def _taken(self) -> bool:
        names = [path.name for path in self._place.iterdir()]
        newest = max(map(_number, names), default=0)
        path = self._path(newest, _HELD)
        if path.name in names:
            owner = Owner.read(path)
            if self._lives(path, owner):
                raise InputError(
                    f"{self._directory} is in use by {owner or 'another run'}; stop that run, wait for its end, or "
                    "give another directory with --workdir"
                )
            if path.exists():
                self._say(f"{self._directory} was left by {owner or 'a run'}, which has ended; taking over")
        try:
            self._create(newest + 1)
        except FileExistsError:
            return False
        self._sweep(names)
        return True

    def _create(self, number: int) -> None:
        self._number, path = number, self._path(number, _HELD)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            owner = Owner.this(locked=_locked(self._file, fcntl.LOCK_EX) is True)
            os.write(self._file, (json.dumps(owner._asdict()) + "\n").encode())
            os.fsync(self._file)
        except OSError:
            self.release()
            raise

    def _sweep(self, names: list[str]) -> None:
        """Delete the locks before this one, which count no more."""
        for name in names:
            if 0 < _number(name) < self._number:
                with contextlib.suppress(OSError):
                    (self._place / name).unlink()

    def _lives(self, path: Path, owner: Owner | None) -> bool:
        if owner is not None and (runs := owner.runs()) is not None:
            return runs
        here = owner is None or owner.boot == Owner.this(locked=False).boot != ""
        free = _can_be_locked(path)
        if here and free is False:
            return True
        if here and free and owner is not None and owner.locked:
            return False  # in another container of this machine, which keeps one table of locks
        # A file server keeps the lock of a host that died: for 90 s with NFSv4, with NFSv3 until that host is back.
        return self._beats(path)

    def _beats(self, path: Path) -> bool:
        """Whether the file's time changes before it is `patience` seconds old, by the clock of its file system."""
        try:
            seen = path.stat().st_mtime
            left = self._patience - (self._now() - seen)
            if left > 0:
                self._say(f"{self._directory} is locked by {Owner.read(path) or 'a run'}; waiting for a sign of life")
            end = time.monotonic() + left
            while time.monotonic() < end:
                if path.stat().st_mtime != seen:
                    return True
                time.sleep(min(1.0, self._patience / 10))
            return path.stat().st_mtime != seen
        except FileNotFoundError:
            return False  # it was given back, or another run has taken over

    def _now(self) -> float:
        clock = self._place / f".clock-{os.uname().nodename}-{os.getpid()}"
        clock.write_text("")
        now = clock.stat().st_mtime
        clock.unlink()
        return now

    def _path(self, number: int, kind: str) -> Path:
        return self._place / f"{number:06d}{kind}"


def _number(name: str) -> int:
    stem, kind = Path(name).stem, Path(name).suffix
    return int(stem) if kind in (_HELD, _FREE) and stem.isdecimal() else 0


def _can_be_locked(path: Path) -> bool | None:
    """Whether nobody holds the file's lock; None where files cannot be locked."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _locked(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _locked(file: int, kind: int) -> bool | None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


# ---- A thread that says every few seconds that this process is alive, also while it compiles or waits -


class Heartbeat:
    """Calls each of `beats` every `seconds` until it is closed, from a thread of its own.

    A beat that fails for a reason of the file system is tried again at the next. An InputError, which says that the run
    may go on no more, ends the thread; who goes on in the main thread will meet it there.
    """

    def __init__(self, seconds: float, *beats: Callable[[], None]) -> None:
        self._seconds, self._beats = seconds, beats
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="heartbeat of the lock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                for beat in self._beats:
                    with contextlib.suppress(OSError):
                        beat()
            except InputError:
                return
