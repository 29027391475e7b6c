"""Linux namespaces: leave them, join them; and, run as a script by path, a command on a host of the lab.

`kernel.py HOST NETWORK CORES COMMAND...` becomes COMMAND in the network namespace that the path NETWORK
leads to, under the host name HOST, on the CPU cores listed in CORES (`0,1`; empty: on any). It imports
nothing of ours, as `jaxnet.cluster.tether`, which runs it. Python has `os.unshare` and `os.setns` from 3.12 only.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence

NEW_MOUNTS, NEW_HOST_NAME, NEW_PROCESSES, NEW_NETWORK = 0x20000, 0x4000000, 0x20000000, 0x40000000

_PR_SET_PDEATHSIG = 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


def unshare(namespaces: int) -> None:
    """Leave namespaces of these kinds for new ones; of `NEW_PROCESSES`, the next child is the first process."""
    _call("unshare", namespaces)


def join(namespace: int, kind: int) -> None:
    """Enter the namespace that the file descriptor stands for."""
    _call("setns", namespace, kind)


def keep_mounts_private() -> None:
    """What this mount namespace mounts from now on is not seen outside."""
    _call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_new(kind: str, where: str) -> None:
    """Mount a new file system, `tmpfs` or `proc`."""
    _call("mount", kind.encode(), where.encode(), kind.encode(), 0, None)


def mount_over(source: str, where: str) -> None:
    """Let the path `where` show the file `source`."""
    _call("mount", source.encode(), where.encode(), None, _MS_BIND, None)


def unmount(where: str) -> None:
    """Take the newest mount off `where`."""
    _call("umount", where.encode())


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent dies; survives exec."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)


def on_host(host: str, network: str, cores: str, command: Sequence[str]) -> list[str]:
    """The command that runs `command` on a host of the lab: this file as a script."""
    return [sys.executable, "-I", "-S", __file__, host, network, cores, *command]


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _become(host: str, network: str, cores: str, command: list[str]) -> None:
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    join(descriptor, NEW_NETWORK)
    unshare(NEW_HOST_NAME)
    socket.sethostname(host)
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"error: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    _become(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
