"""The wires of the lab: a switch, and hosts that are joined to it at a chosen speed.

Each host is a network namespace, and the switch (a bridge) is in another; they have no names outside, only
the file descriptors that this process holds, and no way out. Both ends of a link are shaped, since
either limits what it sends: the host's end what the host sends, the switch's end what the host receives,
however many send to it at once.
"""

import os
import shutil
import subprocess
from pathlib import Path

from jaxnet.cluster.lab import kernel
from jaxnet.errors import InputError

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
    kernel.mount_new("tmpfs", "/proc")
    Path("/proc/hosts").write_text("\n".join(lines) + "\n")
    kernel.mount_over("/proc/hosts", "/etc/hosts")
    kernel.unmount("/proc")


def _add_host(host: int, switch: int, rate: int | None) -> str:
    port = f"port{host}"
    namespace = _new_network()
    _run("ip", "link", "add", _INTERFACE, "type", "veth", "peer", "name", port, "netns", _path(switch))
    _run("ip", "addr", "add", f"{host_address(host)}/24", "dev", _INTERFACE)
    _run("ip", "link", "set", "lo", "up")
    _start(_INTERFACE, rate)
    kernel.join(switch, kernel.NEW_NETWORK)
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
    kernel.unshare(kernel.NEW_NETWORK)
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
