"""The lab's network: one switch, and hosts joined to it by links of a chosen rate.

Each host is a network namespace, and the switch (a bridge) is in one more. The namespaces have no names: only file
descriptors of this process refer to them, so they vanish with it. They have no route to the outside.

Both ends of a link are shaped, because shaping limits only what an end sends. The host's end limits what the host
sends. The switch's end limits what the host receives from all others together.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxnet.errors import InputError
from jaxnet.operations.lab import kernel

_SWITCH = "switch"
_INTERFACE = "eth0"  # of every host
_BURST_SECONDS = 0.001
_LEAST_BURST = 32 * 1024  # bytes
_MOST_GSO = 64 * 1024  # bytes that TCP hands to an interface at once, to be cut into packets late
_QUEUE = "100ms"
# A link here loses nothing and has nothing to be probed for. By BBR, which some systems choose, every second message of
# 4 MiB takes up to a quarter longer at 250 Mbit/s. Every kernel has Reno.
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_ADMIN_PATH = "/usr/sbin:/sbin"  # where ip and tc may be; not on every user's PATH


# ---- Rates ----------------------------------------------------------------------------------------------

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LEAST_RATE, _MOST_RATE = 10**6, 100 * 10**9


def parse_rate(text: str, option: str = "--rate") -> int:
    """A rate such as `1gbit` in bits a second; errors name `option`.

    >>> parse_rate("1gbit"), parse_rate("2.5Mbit")
    (1000000000, 2500000)
    """
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text.lower(), re.ASCII)
    if not written:
        raise InputError(f"{option} {text}: wanted a number of kbit, mbit or gbit a second, such as 1gbit or 250mbit")
    bits = float(written[1]) * _UNITS[written[2]]
    if not _LEAST_RATE <= bits <= _MOST_RATE:
        raise InputError(f"{option} {text}: wanted 1mbit to 100gbit")
    return round(bits)


# ---- Hosts and links ------------------------------------------------------------------------------------


def host_name(host: int) -> str:
    """The name of a host, as all hosts know it.

    >>> host_name(0)
    'host0'
    """
    return f"host{host}"


def host_address(host: int) -> str:
    """The address of a host.

    >>> host_address(0)
    '10.0.0.1'
    """
    return f"10.0.0.{host + 1}"


def check_tools() -> None:
    """Raise InputError when `ip` or `tc` is not installed."""
    missing = [name for name in ("ip", "tc") if _find(name) is None]
    if missing:
        raise InputError(
            f"a lab needs the program {' and '.join(missing)}: install the package iproute2"
            " (on Debian and Ubuntu: apt-get install iproute2; on Fedora: dnf install iproute iproute-tc)"
        )


def build(cores: Sequence[Sequence[int]], rate: int | None) -> list[str]:
    """Join hosts by links of `rate` bits a second; return the path of each host's namespace.

    `cores` are those of each host; an empty list means all.
    This process ends up in the switch's namespace. The paths are valid as long as it lives.
    """
    switch = _new_network()
    _run("ip", "link", "add", _SWITCH, "type", "bridge")
    _run("ip", "link", "set", _SWITCH, "up")
    return [_add_host(host, switch, rate, own) for host, own in enumerate(cores)]


def name_hosts(hosts: int) -> None:
    """Make every host's name resolve to its address in this mount namespace, which must be private."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{host_address(host)} {host_name(host)}" for host in range(hosts)]
    # The file must exist nowhere on disk. Write it to a file system in memory, bind it over /etc/hosts, and unmount:
    # the bind keeps the file alive.
    with _mounted("tmpfs") as memory:
        (memory / "hosts").write_text("\n".join(lines) + "\n")
        kernel.mount_over(str(memory / "hosts"), "/etc/hosts")


@contextmanager
def _mounted(kind: str) -> Iterator[Path]:
    """The folder of a new file system, mounted for a moment over /proc, a folder that always exists."""
    kernel.mount_new(kind, "/proc")
    try:
        yield Path("/proc")
    finally:
        kernel.unmount("/proc")


def _add_host(host: int, switch: int, rate: int | None, cores: Sequence[int]) -> str:
    port = f"port{host}"
    namespace = _new_network()
    # In the host's namespace: one end of the cable, its address, its shape. The other end goes to the switch.
    with suppress(OSError):  # a container may forbid it
        _CONGESTION.write_text("reno")
    _run("ip", "link", "add", _INTERFACE, "type", "veth", "peer", "name", port, "netns", _path(switch))
    _run("ip", "addr", "add", f"{host_address(host)}/24", "dev", _INTERFACE)
    _run("ip", "link", "set", "lo", "up")
    _start(_INTERFACE, rate)
    _receive_on(cores, _INTERFACE)
    # Back in the switch's namespace: plug the cable in.
    kernel.join(switch, kernel.NEW_NETWORK)
    _run("ip", "link", "set", port, "master", _SWITCH)
    _start(port, rate)
    _receive_on(cores, port)
    return _path(namespace)


def _start(interface: str, rate: int | None) -> None:
    if rate is not None:
        # A token bucket lets one burst through at once after a pause. A larger burst would carry whole messages
        # for nothing; with a smaller one, late timers on a busy machine keep the link below its rate.
        burst = max(round(rate / 8 * _BURST_SECONDS), _LEAST_BURST)
        shape = ("rate", f"{rate}bit", "burst", f"{burst}b", "latency", _QUEUE)
        _run("tc", "qdisc", "add", "dev", interface, "root", "tbf", *shape)
        # What is larger than the burst `tbf` would cut into packets, 45 for 64 KiB, which takes the cores. Of half its
        # size there is still something to send while the timer for the next one is late.
        _run("ip", "link", "set", interface, "gso_max_size", str(min(_MOST_GSO, burst // 2)))
    _run("ip", "link", "set", interface, "up")


def _receive_on(cores: Sequence[int], interface: str) -> None:
    """Have these cores take what comes to an interface; each connection stays on one of them.

    What a veth is sent is taken by the core that sends it, and that changes while a connection lasts: so packets
    overtake others, TCP takes these for lost, sends them again and holds back what follows.
    """
    with suppress(OSError), _mounted("sysfs") as system:  # a container may forbid it
        mask = bit_mask(cores or os.sched_getaffinity(0))
        (system / f"class/net/{interface}/queues/rx-0/rps_cpus").write_text(mask)


def bit_mask(cores: Iterable[int]) -> str:
    """These cores as the kernel reads a set of them: 32 to a group, the last ones first.

    >>> bit_mask([0, 1, 4]), bit_mask([1, 33])
    ('13', '2,00000002')
    """
    digits = f"{sum(1 << core for core in cores):x}"
    groups = -(-len(digits) // 8)
    padded = digits.zfill(8 * groups)
    return ",".join(padded[8 * group :][:8] for group in range(groups)).lstrip("0")


def _new_network() -> int:
    """Move this process into a new network namespace, which lives as long as the descriptor returned."""
    kernel.unshare(kernel.NEW_NETWORK)
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _run(program: str, *arguments: str) -> None:
    command = [_find(program) or program, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise InputError(
            f"the kernel refuses `{program} {' '.join(arguments)}` ({reason}); a lab needs its veth, bridge and"
            " tbf (modules veth, bridge, sch_tbf), and root with CAP_NET_ADMIN"
        )


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{_ADMIN_PATH}")
