"""What a job over ssh is, and what is sent to each of its hosts."""

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX, Address
from jaxnet.cluster.progress import PROGRESS
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.restarts import ATTEMPT
from jaxnet.operations.supervise import Rank

HERE = Path(__file__).parent
SILENCE_SECONDS = 60.0
# A false alarm costs a restart and no more, while nothing can go on without the host: better early than certain.
RESTARTED_SILENCE_SECONDS = 15.0
CONNECT_SECONDS = 20
_BEAT_SECONDS = 5.0
_SIGNS = 3  # of life, each unanswered, until silence is taken for the end
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    f"ServerAliveCountMax={_SIGNS}",
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
        max_restarts: see `Restarts`; 0: the job is never started again.
        min_hosts: with how many of `hosts` an attempt may begin; None: with all of them.
        silence_seconds: after so long without a sign of life a link counts as lost on both of its sides. None: 60, and
            15 for a job that is started again.
        look_seconds: between two looks for hosts that are missing. Each is a login on them, and a host that has been
            seen twice costs all a restart: more than the steps that it would have done meanwhile.
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
    max_restarts: int = 0
    min_hosts: int | None = None
    silence_seconds: float | None = None
    look_seconds: float = 15.0

    @property
    def silence(self) -> float:
        """`silence_seconds`, decided."""
        if self.silence_seconds is not None:
            return self.silence_seconds
        return RESTARTED_SILENCE_SECONDS if self.max_restarts else SILENCE_SECONDS


def processes(hosts: Sequence[Host]) -> int:
    """How many processes run on them."""
    return sum(host.slots for host in hosts)


def ssh_command(
    host: Host,
    python: str,
    config: Path | None,
    silence_seconds: float = SILENCE_SECONDS,
    connect_seconds: int = CONNECT_SECONDS,
) -> list[str]:
    """The command that has the interpreter of a host execute what it is sent."""
    words = ["ssh", "-T"]
    if config is not None:
        words += ["-F", str(config)]
    alive = max(round(silence_seconds / _SIGNS), 1)
    for option in (*_OPTIONS, f"ConnectTimeout={connect_seconds}", f"ServerAliveInterval={alive}"):
        words += ["-o", option]
    if host.user is not None:
        words += ["-l", host.user]
    if host.port is not None:
        words += ["-p", str(host.port)]
    return [*words, "--", host.name, "exec " + shlex.join([python, "-I", "-S", "-c", _LOADER])]


def orders(
    job: SshJob, coordinator: Address, bind: Address | None, attempt: int | None = None
) -> list[dict[str, object]]:
    """What each host's agent is to do; processes are numbered host by host.

    With the number of an `attempt`, agents also tell how far their processes have come, in lines that begin with the
    order's `mark`, which no other line does.
    """
    count = processes(job.hosts)
    shared = {COORDINATOR: str(coordinator), COUNT: str(count)} | ({ATTEMPT: str(attempt)} if attempt else {})
    result: list[dict[str, object]] = []
    first = 0
    for host in job.hosts:
        own = [shared | {INDEX: str(index)} for index in range(first, first + host.slots)]
        if bind is not None and first == 0:
            own[0][BIND] = str(bind)
        first += host.slots
        result.append(
            {
                "command": list(job.command),
                "directory": job.directory,
                "environment": dict(job.environment),
                "unset": [COORDINATOR, COUNT, INDEX, BIND, ATTEMPT, PROGRESS],
                "own": own,
                "grace_seconds": job.grace_seconds,
                "silence_seconds": job.silence,
                "mark": f"jaxnet-progress-{secrets.token_hex(8)}" if attempt else None,
            }
        )
    return result


def connections(job: SshJob, coordinator: Address, bind: Address | None, attempt: int | None = None) -> list[Rank]:
    """What a launcher runs: a connection to each host, whose process there is `orders`'."""
    agent = json.dumps((HERE / "ssh_agent.py").read_text())
    return [
        _connection(job, index, agent, order) for index, order in enumerate(orders(job, coordinator, bind, attempt))
    ]


def _connection(job: SshJob, index: int, agent: str, order: dict[str, object]) -> Rank:
    host = job.hosts[index]
    name = host.name if host.port is None else f"{host.name}-{host.port}"
    sent = json.dumps(
        {
            "host": host.name,
            "ssh": ssh_command(host, job.python, job.config, job.silence),
            "lines": [agent, json.dumps(order)],
            "log": None if job.logs is None else str(job.logs / f"{name}.log"),
            "beat_seconds": min(_BEAT_SECONDS, job.silence / _SIGNS),
            "mark": order["mark"],
        }
    )
    if len(sent) > _MOST_BYTES:
        raise InputError(
            f"the command and its variables are too long to send ({len(sent)} bytes): put them into a file"
        )
    command = [sys.executable, "-I", "-S", str(HERE / "ssh_client.py")]
    return Rank(index, command, {**os.environ, "JAXNET_SSH_ORDER": sent}, name)
