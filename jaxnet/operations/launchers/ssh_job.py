"""A job over ssh: what it is, how to log in to its hosts, and what each host is sent."""

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.cluster.addresses import Address
from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.cluster.job_token import TOKEN, new_token
from jaxnet.cluster.progress import PROGRESS
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.restarts import ATTEMPT
from jaxnet.operations.supervise import Rank

HERE = Path(__file__).parent
SILENCE_SECONDS = 60.0
# In a job that restarts, a false alarm costs one restart, while a lost host stops everything: decide early.
RESTARTED_SILENCE_SECONDS = 15.0
CONNECT_SECONDS = 20
_BEAT_SECONDS = 5.0
_SIGNS = 3  # unanswered signs of life before a link counts as lost
SHOWN_TOKEN = "a secret, new in each start"
_MOST_BYTES = 120_000  # Linux takes 128 KiB in one variable; the order travels in one


@dataclass(frozen=True)
class SshJob:
    """What runs on `hosts`, one process for each slot.

    Attributes:
        command: executed in `directory`, with `environment` added to the variables of a login there.
        python: the hosts' interpreter, version 3.10 or newer.
        coordinator: where other hosts reach process 0; None: the address by which ssh reached the first host.
        port: where process 0 listens; None: a port found free on the first host.
        config: a file in place of ssh's own configuration.
        logs: a folder here for the output of each host.
        grace_seconds: from SIGTERM to SIGKILL when a process has failed.
        max_restarts: see `RestartPolicy`; 0: the job never starts again.
        min_hosts: with how many of `hosts` an attempt may begin; None: with all of them.
        silence_seconds: after so long without a sign of life, both sides take a link for lost. None: 60, and 15 for a
            job that restarts.
        look_seconds: between two probes of missing hosts. A probe is a login, and a host that answers twice makes all
            restart, which costs more than the steps done while waiting.
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
        """`silence_seconds`, or its default for this job."""
        if self.silence_seconds is not None:
            return self.silence_seconds
        return RESTARTED_SILENCE_SECONDS if self.max_restarts else SILENCE_SECONDS


def processes(hosts: Sequence[Host]) -> int:
    """How many processes run on `hosts`."""
    return sum(host.slots for host in hosts)


# ---- Logging in -----------------------------------------------------------------------------------------

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
# The login shell on a host may be any shell, so this holds no quote, backslash, $ or !. All else goes through stdin.
_LOADER = "import json, sys; exec(json.loads(sys.stdin.buffer.readline()))"


def ssh_command(
    host: Host,
    python: str,
    config: Path | None,
    silence_seconds: float = SILENCE_SECONDS,
    connect_seconds: int = CONNECT_SECONDS,
) -> list[str]:
    """The command line that logs in to `host` and executes the Python text in its first line of input."""
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


# ---- What hosts are sent --------------------------------------------------------------------------------


def connections(job: SshJob, coordinator: Address, bind: Address | None, attempt: int | None = None) -> list[Rank]:
    """The processes that a launcher runs here: for each host, a connection that carries its order."""
    agent = json.dumps((HERE / "ssh_agent.py").read_text())
    given = orders(job, coordinator, bind, attempt, new_token())
    return [_connection(job, index, agent, order) for index, order in enumerate(given)]


def orders(
    job: SshJob, coordinator: Address, bind: Address | None, attempt: int | None = None, token: str = SHOWN_TOKEN
) -> list[dict[str, object]]:
    """What the agent on each host is to do. Processes are numbered host by host, and share `token`.

    With the number of an `attempt`, agents also report how far their processes have come, in lines of output that
    begin with the order's `mark`. The mark is random, so no other line begins with it.
    """
    count = processes(job.hosts)
    shared = {COORDINATOR: str(coordinator), COUNT: str(count), TOKEN: token} | (
        {ATTEMPT: str(attempt)} if attempt else {}
    )
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
