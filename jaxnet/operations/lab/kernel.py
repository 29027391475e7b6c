"""Linux namespaces for the lab: system calls, and a script that starts a command on a lab host.

`kernel.py HOST NETWORK CORES COMMAND...` turns into COMMAND inside the network namespace at the path NETWORK, under
the host name HOST, on the CPU cores listed in CORES (`0,1`; empty means any).

This is a file of its own because every process of a lab starts through it, by path, with `python -I -S`: it may
import the standard library only. The calls go through ctypes because `os.unshare` and `os.setns` came with
Python 3.12.
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
    """Move this process into new namespaces of these kinds; for `NEW_PROCESSES`, its next child moves instead."""
    _call("unshare", namespaces)


def join(namespace: int, kind: int) -> None:
    """Enter the namespace that the file descriptor refers to."""
    _call("setns", namespace, kind)


def keep_mounts_private() -> None:
    """Hide later mounts in this mount namespace from all others."""
    _call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_new(kind: str, where: str) -> None:
    """Mount a new file system, `tmpfs`, `proc` or `sysfs`."""
    _call("mount", kind.encode(), where.encode(), kind.encode(), 0, None)


def mount_over(source: str, where: str) -> None:
    """Show the file `source` at the path `where`."""
    _call("mount", source.encode(), where.encode(), None, _MS_BIND, None)


def unmount(where: str) -> None:
    """Remove the newest mount at `where`."""
    _call("umount", where.encode())


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent dies. The request survives exec."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)


def on_host(host: str, network: str, cores: str, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` on a lab host: this file as a script."""
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
