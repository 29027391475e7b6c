"""The wires of the lab: a switch, and hosts that are joined to it at a chosen speed.

Each host is a network namespace, and the switch (a bridge) is in another; they have no names outside, only
the file descriptors that this process holds, and no way out. Both ends of a link are shaped, since
either limits what it sends: the host's end what the host sends, the switch's end what the host receives,
however many send to it at once.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxnet.errors import InputError

# ---- The speed of a link as users write it: `1gbit`, `250mbit` ----------------------------------------


_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LEAST, _MOST = 10**6, 100 * 10**9


def parse_rate(text: str, option: str = "--rate") -> int:
    """Bits a second; `option` is what an error names.

    >>> parse_rate("1gbit"), parse_rate("2.5Mbit")
    (1000000000, 2500000)
    """
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text.lower(), re.ASCII)
    if not written:
        raise InputError(f"{option} {text}: wanted a number of kbit, mbit or gbit a second, such as 1gbit or 250mbit")
    bits = float(written[1]) * _UNITS[written[2]]
    if not _LEAST <= bits <= _MOST:
        raise InputError(f"{option} {text}: wanted 1mbit to 100gbit")
    return round(bits)


# ---- Linux namespaces: leave them, join them; and, run as a script by path, a command on a host of the lab
#
# `kernel.py HOST NETWORK CORES COMMAND...` becomes COMMAND in the network namespace that the path NETWORK
# leads to, under the host name HOST, on the CPU cores listed in CORES (`0,1`; empty: on any). It imports
# nothing of ours, as `jaxnet.operations.tether`, which runs it. Python has `os.unshare` and `os.setns` from 3.12 only.


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


_SWITCH = "switch"
_INTERFACE = "eth0"  # of every host
_BURST_SECONDS = 0.001
_LEAST_BURST = 32 * 1024  # bytes
_QUEUE = "100ms"
_ADMIN_PATH = "/usr/sbin:/sbin"  # where ip and tc may be, and not on everyone's PATH


def host_name(host: int) -> str:
    """What a host is called, by all of them.

    >>> host_name(0)
    'host0'
    """
    return f"host{host}"


def host_address(host: int) -> str:
    """Where the others reach a host.

    >>> host_address(0)
    '10.0.0.1'
    """
    return f"10.0.0.{host + 1}"


def check_tools() -> None:
    """Raise InputError when a program that builds the lab is not installed."""
    missing = [name for name in ("ip", "tc") if _find(name) is None]
    if missing:
        raise InputError(
            f"a lab needs the program {' and '.join(missing)}: install the package iproute2"
            " (on Debian and Ubuntu: apt-get install iproute2; on Fedora: dnf install iproute iproute-tc)"
        )


def build(hosts: int, rate: int | None) -> list[str]:
    """Join that many hosts by links of `rate` bits a second; the result is a path to each one's namespace.

    Moves this process into the namespace of the switch; the paths are good while it lives.
    """
    switch = _new_network()
    _run("ip", "link", "add", _SWITCH, "type", "bridge")
    _run("ip", "link", "set", _SWITCH, "up")
    return [_add_host(host, switch, rate) for host in range(hosts)]


def name_hosts(hosts: int) -> None:
    """Let the name of every host lead to its address, in this mount namespace, which must be private."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{host_address(host)} {host_name(host)}" for host in range(hosts)]
    # A file system in memory, put over a folder that is always there, only for as long as it takes: the
    # file lives on where it is shown, and nothing is written outside.
    mount_new("tmpfs", "/proc")
    Path("/proc/hosts").write_text("\n".join(lines) + "\n")
    mount_over("/proc/hosts", "/etc/hosts")
    unmount("/proc")


def _add_host(host: int, switch: int, rate: int | None) -> str:
    port = f"port{host}"
    namespace = _new_network()
    _run("ip", "link", "add", _INTERFACE, "type", "veth", "peer", "name", port, "netns", _path(switch))
    _run("ip", "addr", "add", f"{host_address(host)}/24", "dev", _INTERFACE)
    _run("ip", "link", "set", "lo", "up")
    _start(_INTERFACE, rate)
    join(switch, NEW_NETWORK)
    _run("ip", "link", "set", port, "master", _SWITCH)
    _start(port, rate)
    return _path(namespace)


def _start(interface: str, rate: int | None) -> None:
    if rate is not None:
        # After a pause a burst passes at once. A larger one would let whole messages through for nothing, and
        # with a smaller one the link falls short of its rate when the machine is busy.
        burst = max(round(rate / 8 * _BURST_SECONDS), _LEAST_BURST)
        shape = ("rate", f"{rate}bit", "burst", f"{burst}b", "latency", _QUEUE)
        _run("tc", "qdisc", "add", "dev", interface, "root", "tbf", *shape)
    _run("ip", "link", "set", interface, "up")


def _new_network() -> int:
    """Move this process into a network namespace of its own, which lives as long as the descriptor returned."""
    unshare(NEW_NETWORK)
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{_ADMIN_PATH}")


def _run(program: str, *arguments: str) -> None:
    command = [_find(program) or program, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise InputError(
            f"the kernel refuses `{program} {' '.join(arguments)}` ({reason}); a lab needs its veth, bridge and"
            " tbf (modules veth, bridge, sch_tbf), and root with CAP_NET_ADMIN"
        )
