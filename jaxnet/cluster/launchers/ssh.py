"""A job on hosts that ssh reaches: one connection a host, over which signals go and whose end ends all.

Host keys are always checked, and nothing is asked: `ssh HOST true` has to work without a question.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.cluster.address import Address, is_loopback
from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.cluster.launchers.hosts import Host
from jaxnet.cluster.launchers.shell import need
from jaxnet.cluster.supervise import Rank, supervise
from jaxnet.errors import InputError

_HERE = Path(__file__).parent
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=20",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "ControlMaster=no",  # a shared connection would not end with this one
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
)
# Neither quote, backslash, $ nor ! in it: the login shell may be any.
_LOADER = "import json, sys; exec(json.loads(sys.stdin.buffer.readline()))"
_FIRST_HOST = "jaxnet-first-host"
_MOST_BYTES = 120_000  # of one variable, in which the order reaches the connection's process


@dataclass(frozen=True)
class SshJob:
    """What runs on `hosts`, a process for each slot.

    Attributes:
        command: executed in `directory`, with `environment` on top of what a login there sets.
        python: the hosts' interpreter, of any version from 3.10 on.
        coordinator: where the others reach process 0; without a port, a free one is found there. By default,
            the address at which ssh reached the first host.
        config: a file in the place of ssh's own configuration.
        logs: a folder, here, for the output of each host.
    """

    command: Sequence[str]
    directory: str
    hosts: Sequence[Host]
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    coordinator: str | None = None
    port: int | None = None
    config: Path | None = None
    logs: Path | None = None
    grace_seconds: float = 10.0


def launch_ssh(job: SshJob) -> int:
    """Run `job` and return its exit status, see `supervise`; its ranks are the hosts."""
    need("ssh", "install it (on Debian and Ubuntu: apt-get install openssh-client)")
    address, own = _find_coordinator(job)
    if job.logs is not None:
        _make_folder(job.logs)
    agent = json.dumps((_HERE / "ssh_agent.py").read_text())
    ranks = [
        _connection(job, index, [agent, json.dumps(order)]) for index, order in enumerate(orders(job, address, own))
    ]
    return supervise(ranks, job.grace_seconds)


def show_ssh(job: SshJob) -> str:
    """What `launch_ssh` would run, and what each host would be told, without asking any."""
    named = job.coordinator or "ADDRESS-OF-THE-FIRST-HOST"
    address = Address(named, job.port or 0)
    shown = "# The first host is asked for a free port (shown as 0), and for its address unless that is given.\n"
    for host, order in zip(job.hosts, orders(job, address, None), strict=True):
        shown += f"\n# {host.name}: this, and as its input jaxnet/cluster/launchers/ssh_agent.py with the order below\n"
        shown += shlex.join(ssh_command(host, job.python, job.config)) + "\n"
        shown += "\n".join(f"# {line}" for line in json.dumps(order, indent=2).splitlines()) + "\n"
    return shown


def ssh_command(host: Host, python: str, config: Path | None) -> list[str]:
    """The command that has the interpreter of a host execute what it is sent."""
    words = ["ssh", "-T"]
    if config is not None:
        words += ["-F", str(config)]
    for option in _OPTIONS:
        words += ["-o", option]
    if host.user is not None:
        words += ["-l", host.user]
    if host.port is not None:
        words += ["-p", str(host.port)]
    return [*words, "--", host.name, "exec " + shlex.join([python, "-I", "-S", "-c", _LOADER])]


def orders(job: SshJob, coordinator: Address, bind: Address | None) -> list[dict[str, object]]:
    """What each host's agent is to do; processes are numbered host by host."""
    count = sum(host.slots for host in job.hosts)
    result: list[dict[str, object]] = []
    first = 0
    for host in job.hosts:
        own = [
            {COORDINATOR: str(coordinator), COUNT: str(count), INDEX: str(index)}
            for index in range(first, first + host.slots)
        ]
        if bind is not None and first == 0:
            own[0][BIND] = str(bind)
        first += host.slots
        result.append(
            {
                "command": list(job.command),
                "directory": job.directory,
                "environment": dict(job.environment),
                "unset": [COORDINATOR, COUNT, INDEX, BIND],
                "own": own,
                "grace_seconds": job.grace_seconds,
            }
        )
    return result


def _connection(job: SshJob, index: int, lines: Sequence[str]) -> Rank:
    host = job.hosts[index]
    name = host.name if host.port is None else f"{host.name}-{host.port}"
    order = json.dumps(
        {
            "host": host.name,
            "ssh": ssh_command(host, job.python, job.config),
            "lines": lines,
            "log": None if job.logs is None else str(job.logs / f"{name}.log"),
        }
    )
    if len(order) > _MOST_BYTES:
        raise InputError(
            f"the command and its variables are too long to send ({len(order)} bytes): put them into a file"
        )
    command = [sys.executable, "-I", "-S", str(_HERE / "ssh_client.py")]
    return Rank(index, command, {**os.environ, "JAXNET_SSH_ORDER": order})


def _find_coordinator(job: SshJob) -> tuple[Address, Address | None]:
    """Where process 0 is reached, and where it listens if that is known to be an address of its host."""
    first = job.hosts[0]
    if job.coordinator is not None and job.port is not None:
        return Address(job.coordinator, job.port), None
    if sum(host.slots for host in job.hosts) == 1:
        return Address(first.name, 1), None
    address, free = _ask(first, job)
    here = Address(address, job.port or free)
    if job.coordinator is not None:
        return Address(job.coordinator, here.port), None
    if len(job.hosts) > 1 and is_loopback(address):
        raise InputError(
            f"{first.name} is this machine, reached at the loopback address {address}: give --coordinator with an"
            " address of it that the other hosts can reach"
        )
    return here, here


def _ask(host: Host, job: SshJob) -> tuple[str, int]:
    text = json.dumps((_HERE / "ssh_probe.py").read_text()) + "\n"
    command = ssh_command(host, job.python, job.config)
    done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")
    found = [line.split() for line in done.stdout.splitlines() if line.startswith(_FIRST_HOST + " ")]
    if done.returncode != 0 or not found:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise InputError(
            f"cannot start on {host.name}: {said[-1].strip()}; `ssh {host.name} {job.python} --version` must work"
            " without a question (log in once by hand to see and accept its key)"
        )
    return found[0][1], int(found[0][2])


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--logs {path}: {error.strerror}; give a folder that can be made") from None
