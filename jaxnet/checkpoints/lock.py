"""One run at a time in a directory: a lock that names its owner, and that a killed run leaves behind without harm.

    lock/000003.json    held: names the owner; the file's modification time is its last sign of life
    lock/000003.free    released

Locks are numbered, and nobody changes the lock of another run:

1. Take: look at the highest number N. If it is held, decide whether its owner lives, and refuse if so. Otherwise
   create N + 1 with O_EXCL, which only one process can do; whoever loses that race looks again.
2. Hold: renew the file's time every few seconds (`beat`). Before each write to the directory, check that no higher
   number exists (`require`). A run that was believed dead, because its machine slept or its network was down, finds
   the higher number here and writes no more. A lock that is deleted and created again could not tell it so.
3. Release: rename `.json` to `.free`. A killed run leaves `.json`, and the next run finds that its owner is dead.

Whether the owner lives, in the order in which the next run asks:

- same machine, another file than it made, on which nobody has a `flock`: this is a copy of its directory;
- same machine, same process namespace: the system knows the pid and when that process started;
- same machine, another container: `flock` on the file, because one kernel keeps all locks;
- another host, or a file that cannot be locked: the file's time, by the clock of its own file system. If it changes,
  the owner lives; if it is 60 s old, the owner is dead.
"""

import contextlib
import fcntl
import getpass
import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from jaxnet.errors import InputError, printable
from jaxnet.files import read_object, record_of

# ---- The owner ------------------------------------------------------------------------------------------


class Owner(NamedTuple):
    """Identity of a lock's owner, which a process on any host can read and some can check.

    Attributes:
        host: name of its host.
        pid: its process id there.
        user: who runs it.
        since: when it took the lock, as text.
        machine: boot id of the operating system and the namespace in which `pid` counts; "" if unknown.
        boot: boot id of the operating system alone; "" if unknown.
        started: when the process started, in clock ticks since boot: a later process may get the same pid.
        locked: whether it holds a `flock` on the file.
        file: the number that the file system gave the file; 0 if unknown, as of older runs.
    """

    host: str
    pid: int
    user: str
    since: str
    machine: str
    boot: str
    started: str
    locked: bool
    file: int = 0

    @classmethod
    def this(cls, *, locked: bool) -> Self:
        """Return this process as an owner."""
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
        """Return the owner that a file names; None while the file is absent or incomplete."""
        try:
            return record_of(cls, read_object(path))
        except (OSError, ValueError):
            return None

    def runs(self) -> bool | None:
        """Return whether that process runs; None if it is on another host, in another container, or hidden."""
        if not self.machine or self.machine != self.this(locked=False).machine or _is_hidden(self.pid):
            return None
        return started(self.pid) == self.started != ""

    def is_here(self) -> bool:
        """Return whether it is on this machine, since the machine was started."""
        return self.boot == self.this(locked=False).boot != ""

    def __str__(self) -> str:
        user, host, since = (printable(text, _MOST_CHARACTERS) for text in (self.user, self.host, self.since))
        return f"process {self.pid} of user {user} on host {host} since {since}"


def started(pid: int) -> str:
    """Return when a process of this machine started, in clock ticks since boot; "" if there is none or it has ended."""
    stat = _text(lambda: Path(f"/proc/{pid}/stat").read_text())
    # The second field is the name in parentheses, and may contain spaces and parentheses: split after the last one.
    fields = stat.rpartition(")")[2].split()
    # fields[0] is the state: Z is a zombie, X is dead. fields[19] is the start time.
    return "" if not fields or fields[0] in "ZX" else fields[19]


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process and /proc does not show it to this user, as with the mount option hidepid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except (OSError, OverflowError):
        pass
    return False


def _user() -> str:
    return _text(getpass.getuser) or str(os.getuid())


def _text(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, KeyError):
        return ""


# ---- The lock -------------------------------------------------------------------------------------------

BEAT_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
_HELD, _FREE = ".json", ".free"
_MOST_CHARACTERS = 100  # of each word about an owner in a message

_log = logging.getLogger("jaxnet")


class Lost(InputError):
    """Another run has taken over the directory; this one must not write there."""


class Lock:
    """Takes the lock of `directory` when it is made. Call `beat` every `BEAT_SECONDS` while holding it.

    Raises InputError, naming the owner, when the directory is in use, and when it cannot be written.

    Args:
        directory: what to lock.
        patience: seconds without a sign of life after which a run on another host counts as dead.
        say: takes a line for a person, such as that this run takes over.
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
            while not self._try_to_take():
                pass  # another run was faster: look at that one
        except OSError as error:
            raise InputError(
                f"{directory} cannot be locked against a second run: {error.strerror}; fix that, or use another one"
            ) from error

    def beat(self) -> None:
        """Give a sign of life: renew the file's time."""
        os.utime(self._file)

    def require(self) -> None:
        """Return if this run still holds the lock; raise Lost if not, OSError when the directory cannot be read."""
        names = [path.name for path in self._place.iterdir()]
        newest = max(map(_number, names), default=0)
        if newest > self._number:
            taker = Owner.read(self._path(newest, _HELD)) or "another run"
            raise Lost(f"{self._directory} was taken over by {taker}; this run stops and writes nothing there")
        if self._path(self._number, _HELD).name not in names:
            raise Lost(f"the lock of this run, {self._path(self._number, _HELD)}, was removed; this run stops")

    def release(self) -> None:
        """Give it back. Never fails: the next run finds that the owner of a lock left behind has ended."""
        with contextlib.suppress(OSError):
            self._path(self._number, _HELD).rename(self._path(self._number, _FREE))
        with contextlib.suppress(OSError):  # NFS may report a write only now
            os.close(self._file)

    def _try_to_take(self) -> bool:
        """Create the next number; return False if another run created it first, raise InputError if one lives."""
        names = [path.name for path in self._place.iterdir()]
        newest = max(map(_number, names), default=0)
        path = self._path(newest, _HELD)
        if path.name in names:
            owner = Owner.read(path)
            copied = owner is not None and _is_copied(path, owner)
            if not copied and self._lives(path, owner):
                raise InputError(
                    f"{self._directory} is in use by {owner or 'another run'}; stop that run, wait for its end, or "
                    "give another directory with --workdir"
                )
            if copied:
                self._say(f"{self._directory} was copied from that of {owner}; taking over the copy")
            elif path.exists():
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
            owner = Owner.this(locked=try_lock(self._file, fcntl.LOCK_EX) is True)
            owner = owner._replace(file=os.fstat(self._file).st_ino)
            os.write(self._file, (json.dumps(owner._asdict()) + "\n").encode())
            os.fsync(self._file)
        except OSError:
            self.release()
            raise

    def _sweep(self, names: list[str]) -> None:
        """Delete the locks before this one: only the highest number counts."""
        for name in names:
            if 0 < _number(name) < self._number:
                with contextlib.suppress(OSError):
                    (self._place / name).unlink()

    def _lives(self, path: Path, owner: Owner | None) -> bool:
        if owner is not None and (runs := owner.runs()) is not None:
            return runs
        # Ask flock only about this machine. A file server keeps the lock of a host that died: NFSv4 for 90 s, NFSv3
        # until that host is back.
        here = owner is None or owner.is_here()
        free = _can_be_locked(path)
        if here and free is False:
            return True
        if here and free and owner is not None and owner.locked:
            return False  # an owner in another container: one kernel keeps the locks of all
        return self._beats(path)

    def _beats(self, path: Path) -> bool:
        """Return whether the file's time changes before it is `patience` seconds old by its file system's clock."""
        try:
            seen = path.lstat().st_mtime
            left = min(self._patience - (self._now() - seen), self._patience)  # a clock may have been set back
            if left > 0:
                self._say(f"{self._directory} is locked by {Owner.read(path) or 'a run'}; waiting for a sign of life")
            end = time.monotonic() + left
            while time.monotonic() < end:
                if path.lstat().st_mtime != seen:
                    return True
                time.sleep(min(1.0, self._patience / 10))
            return path.lstat().st_mtime != seen
        except FileNotFoundError:
            return False  # it was released, or another run has taken over

    def _now(self) -> float:
        """Return the time by the file system's clock, which may differ from this host's."""
        with tempfile.NamedTemporaryFile(dir=self._place, prefix=".clock-") as clock:
            return os.fstat(clock.fileno()).st_mtime

    def _path(self, number: int, kind: str) -> Path:
        return self._place / f"{number:06d}{kind}"


def _number(name: str) -> int:
    stem, kind = Path(name).stem, Path(name).suffix
    return int(stem) if kind in (_HELD, _FREE) and stem.isdecimal() else 0


def _is_copied(path: Path, owner: Owner) -> bool:
    """Return whether this is a copy of the file that an owner on this machine holds: who copies a workdir copies it.

    Both must say so: a file system may number its files anew, and a file server may lose its locks.
    """
    try:
        another = owner.file not in (0, path.stat().st_ino)
    except OSError:
        return False
    return another and owner.locked and owner.is_here() and _can_be_locked(path) is True


def _can_be_locked(path: Path) -> bool | None:
    """Return whether nobody holds the file's `flock`; None where files cannot be locked."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return try_lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def try_lock(file: int, kind: int) -> bool | None:
    """Try to take a `flock`: True if it worked, False if another holds it, None where files cannot be locked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


# ---- Signs of life --------------------------------------------------------------------------------------


class Heartbeat:
    """Calls each of `beats` every `seconds` from a thread of its own, also while the process compiles or waits.

    A beat that fails with OSError is tried again at the next turn. An InputError, which means that the run must stop,
    ends the thread; the main thread meets the same error at its next write.
    """

    def __init__(self, seconds: float, *beats: Callable[[], None]) -> None:
        self._seconds, self._beats = seconds, beats
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat of the lock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                for beat in self._beats:
                    with contextlib.suppress(OSError):
                        beat()
            except InputError:
                return
