"""Programs on the hosts of a lab, and what of it is seen from outside."""

import functools
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from support.programs import PATIENCE

# What a lab needs of the machine, tried without any code of ours.
_PROBE = """
ip link add name v0 type veth peer name v1 && ip link add name s0 type bridge &&
tc qdisc add dev v0 root tbf rate 1gbit burst 512kb latency 100ms && mount -t tmpfs none /mnt
"""

# How programs on hosts of the lab begin.
RANK = """
import os, signal, socket, sys, time
rank = int(os.environ["JAX_PROCESS_ID"])

def listen():
    return socket.create_server(("", 5000))

def call(host):
    while True:
        try:
            return socket.create_connection((host, 5000))
        except OSError:
            time.sleep(0.02)
"""


@functools.cache
def impossible():
    """Why this machine cannot have a lab, or an empty string."""
    if shutil.which("unshare") is None:
        return "there is no program `unshare` to see whether this machine can have a lab"
    command = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", _PROBE]
    tried = subprocess.run(command, capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"this machine cannot have a lab: {' '.join(tried.stderr.split())}"


def outside():
    """The parts of the machine that a careless lab would change."""
    commands = ["ip -brief address", "ip route", "ip -6 route", "ip rule", "ip netns", "tc qdisc", "hostname"]
    printed = {command: subprocess.check_output(command.split(), text=True) for command in commands}
    folders = {name: sorted(Path(name).glob("*")) for name in ("/etc/netns", "/run/netns")}
    files = {"/etc/hosts": Path("/etc/hosts").read_text()}
    # A small disk that another test mounts meanwhile, in its temporary folder, is no lab's.
    mounts = {"mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/pytest-" not in line]}
    settings = {path: path.read_text() for path in Path("/proc/sys/net/ipv4").glob("*forward*")}
    return printed | folders | files | mounts | settings


def descendants(pid):
    """The processes that `pid` started, and those that they did, parents first."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(child)]
    return found


def networks_of(pids):
    return {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}


def await_unused(networks):
    """Wait until no process of the machine is in any of these network namespaces."""
    deadline = time.monotonic() + PATIENCE
    while left := networks & set(_networks_in_use()):
        assert time.monotonic() < deadline, f"still in use: {left}"
        time.sleep(0.02)


def _networks_in_use():
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            yield str(path.readlink())
