"""Who holds a directory: a process, told so that another process, perhaps on another host, can judge if it lives."""

import getpass
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self


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
