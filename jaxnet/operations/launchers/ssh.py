"""`jaxnet launch ssh`."""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from jaxnet.cluster.environment import Address, is_loopback
from jaxnet.command_line import (
    HOSTFILE,
    Commands,
    add_command,
    add_devices,
    command_of,
    given_path,
    new_kind,
    not_negative,
    positive,
    show,
)
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.job import need
from jaxnet.operations.launchers.ssh_job import (
    CONNECT_SECONDS,
    HERE,
    SshJob,
    connections,
    orders,
    processes,
    ssh_command,
)
from jaxnet.operations.restarts import Restarting, say
from jaxnet.operations.supervise import Ended, Rank, supervise

# ---- Hosts that are asked whether they answer, and where a job that begins on the first of them has its process 0


_ANSWER = "jaxnet-first-host"
_LOOK_SECONDS = 0.05


class There(NamedTuple):
    """A host that answers: the address by which ssh reached it, and a port that is free there."""

    address: str
    port: int


def ask(host: Host, job: SshJob) -> There | str:
    """Log in to a host and try its Python; why it failed, if it does not answer."""
    return ask_all([host], job, CONNECT_SECONDS, math.inf, threading.Event())[host]


def ask_all(
    hosts: Sequence[Host], job: SshJob, connect_seconds: int, seconds: float, over: threading.Event
) -> dict[Host, There | str]:
    """As `ask`, all at the same time, for so many seconds, or until it is `over`; then no connection is left."""
    questions = {host: _Question(host, job, connect_seconds) for host in hosts}
    end = time.monotonic() + seconds
    try:
        while any(each.is_open() for each in questions.values()) and time.monotonic() < end:
            if over.wait(_LOOK_SECONDS):
                break
    finally:
        answers = {host: each.close() for host, each in questions.items()}
    return {host: answer or f"no answer within {seconds:g} s" for host, answer in answers.items()}


class _Question:
    """A login that executes `ssh_probe.py`."""

    def __init__(self, host: Host, job: SshJob, connect_seconds: int) -> None:
        # Files, which never fill up; open until the question is closed.
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            ssh_command(host, job.python, job.config, job.silence, connect_seconds),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as sink:
            sink.write(json.dumps((HERE / "ssh_probe.py").read_text()).encode() + b"\n")

    def is_open(self) -> bool:
        return self._process.poll() is None

    def close(self) -> There | str:
        """The answer, or why there is none; empty where it has not come yet."""
        late = self.is_open()
        self._process.kill()
        self._process.wait()
        said, complaints = _lines(self._out), _lines(self._err)
        if late:
            return ""
        found = [line.split() for line in said if line.startswith(_ANSWER + " ")]
        if self._process.returncode == 0 and found:
            return There(found[0][1], int(found[0][2]))
        return complaints[-1].strip() if complaints else f"status {self._process.returncode}"


def _lines(file: IO[bytes]) -> list[str]:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace").strip().splitlines()


def coordinator_of(job: SshJob, there: There) -> tuple[Address, Address | None]:
    """Where process 0 of `job` is reached, and where it listens if that is known to be an address of its host."""
    here = Address(there.address, job.port or there.port)
    if job.coordinator is not None:
        return Address(job.coordinator, here.port), None
    if len(job.hosts) > 1 and is_loopback(there.address):
        raise InputError(
            f"{job.hosts[0].name} is this machine, reached at the loopback address {there.address}: give --coordinator"
            " with an address of it that the other hosts can reach"
        )
    return here, here


# ---- The hosts of a job over ssh that is started again: those that answer, and those that may come back


_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 10.0


class Hosts:
    """Of a job's hosts, those that take part, asked anew before each attempt.

    Left out are hosts that do not answer, one that failed until the budget was used up, and the last ones where the
    processes of all cannot share the global batch.
    """

    def __init__(self, job: SshJob) -> None:
        self._job = job
        self._fewest = len(job.hosts) if job.min_hosts is None else job.min_hosts
        self._present: list[Host] = list(job.hosts)
        self._failed: set[Host] = set()
        self._unfit: set[int] = set()
        self._had_fewer = False

    def gather(self, attempt: int) -> Sequence[Rank] | str:
        """The connections of an attempt, or why it cannot begin now."""
        answers = self._ask([host for host in self._job.hosts if host not in self._failed], threading.Event())
        there = {host: answer for host, answer in answers.items() if isinstance(answer, There)}
        missing = "; ".join(f"{host.name} ({answer})" for host, answer in answers.items() if isinstance(answer, str))
        chosen = self._fitting(list(there))
        if len(chosen) < self._fewest:
            return f"{len(there)} of {len(self._job.hosts)} hosts answer, wanted {self._fewest}: without {missing}"
        first = self._job.hosts[0]
        if self._job.coordinator is not None and chosen[0] != first:
            return (
                f"--coordinator {self._job.coordinator} is an address of {first.name}, which does not take part; leave"
                " it out, and the first host that answers takes its place"
            )
        self._present = chosen
        if len(chosen) < len(self._job.hosts):
            self._had_fewer = True
            say(f"attempt {attempt} on {_names(chosen)}" + (f"; without {missing}" if missing else ""))
        job = replace(self._job, hosts=chosen)
        return connections(job, *coordinator_of(job, there[chosen[0]]), attempt)

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        """Leave out the host that failed every time, or a number of processes that never did a step."""
        if always and len(self._present) > self._fewest:
            host = self._present[failed.index]
            self._failed.add(host)
            return f"the others, without {host.name}"
        if began or not self._had_fewer:
            return None  # a mistake in the configuration is none of the number
        count = processes(self._present)
        self._unfit.add(count)
        return f"fewer than {count} processes" if len(self._fitting(self._present)) >= self._fewest else None

    def await_more(self, over: threading.Event) -> str:
        """Wait until with a host that has answered twice in a row the next attempt would have more processes."""
        present, once = list(self._present), set[Host]()
        missing = [host for host in self._job.hosts if host not in present and host not in self._failed]
        while missing and not over.wait(self._job.look_seconds):
            answering = {host for host, answer in self._ask(missing, over).items() if isinstance(answer, There)}
            back, once = answering & once, answering
            next_time = self._fitting([host for host in self._job.hosts if host in present or host in back])
            if processes(next_time) > processes(present):
                return f"{_names([host for host in next_time if host not in present])} answers again"
        return ""

    def _ask(self, hosts: Sequence[Host], over: threading.Event) -> dict[Host, There | str]:
        return ask_all(hosts, self._job, _CONNECT_SECONDS, _ANSWER_SECONDS, over)

    def _fitting(self, hosts: Sequence[Host]) -> list[Host]:
        """The first of them whose processes are not of an unfit number."""
        chosen = list(hosts)
        while processes(chosen) in self._unfit:
            chosen.pop()
        return chosen


def _names(hosts: Sequence[Host]) -> str:
    return ", ".join(host.name for host in hosts)


# ---- A job on hosts that ssh reaches: one connection a host, over which signals go and whose end ends all
#
# Host keys are always checked, and nothing is asked: `ssh HOST true` has to work without a question.


def launch_ssh(job: SshJob) -> int:
    """Run `job` and return its exit status, see `supervise`; its ranks are the hosts.

    With `max_restarts` it is started again when it fails, see `Restarting`, on the hosts that then answer.
    """
    _check(job)
    need("ssh", "install it (on Debian and Ubuntu: apt-get install openssh-client)")
    if job.logs is not None:
        _make_folder(job.logs)
    if job.max_restarts == 0:
        return supervise(connections(job, *_find_coordinator(job)), job.grace_seconds)
    with tempfile.TemporaryDirectory(prefix="jaxnet-") as folder:
        return Restarting(Hosts(job), Path(folder), job.grace_seconds, job.max_restarts).run()


def show_ssh(job: SshJob) -> str:
    """What `launch_ssh` would run, and what each host would be told, without asking any."""
    _check(job)
    named = job.coordinator or "ADDRESS-OF-THE-FIRST-HOST"
    address = Address(named, job.port or 0)
    shown = "# The first host is asked for a free port (shown as 0), and for its address unless that is given.\n"
    for host, order in zip(job.hosts, orders(job, address, None, 1 if job.max_restarts else None), strict=True):
        shown += (
            f"\n# {host.name}: this, and as its input jaxnet/operations/launchers/ssh_agent.py with the order below\n"
        )
        shown += shlex.join(ssh_command(host, job.python, job.config, job.silence)) + "\n"
        shown += "\n".join(f"# {line}" for line in json.dumps(order, indent=2).splitlines()) + "\n"
    return shown


def _check(job: SshJob) -> None:
    if job.min_hosts is None:
        return
    if job.max_restarts == 0:
        raise InputError(f"--min-hosts {job.min_hosts}: give --max-restarts too; without it nothing starts again")
    if job.min_hosts > len(job.hosts):
        raise InputError(f"--min-hosts {job.min_hosts}: there are {len(job.hosts)} hosts; wanted at most that many")


def _find_coordinator(job: SshJob) -> tuple[Address, Address | None]:
    first = job.hosts[0]
    if job.coordinator is not None and job.port is not None:
        return Address(job.coordinator, job.port), None
    if processes(job.hosts) == 1:
        return Address(first.name, 1), None
    answer = ask(first, job)
    if isinstance(answer, str):
        raise InputError(
            f"cannot start on {first.name}: {answer}; `ssh {first.name} {job.python} --version` must work without a"
            " question (log in once by hand to see and accept its key)"
        )
    return coordinator_of(job, answer)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--logs {path}: {error.strerror}; give a folder that can be made") from None


_ABOUT = """\
Start a process on each host, or one for each slot of it, over one ssh connection a host. Output is prefixed with
the number of the host (and of the process, where a host runs several); when one fails, all are ended and its exit
status is passed on; Ctrl-C and SIGTERM reach the processes; when a connection ends, nothing is left on its host.

Logging in must work without a question, by key, and the hosts' own keys must be known: they are always checked.

With --max-restarts, when a process fails, a host dies or its link is lost for 15 s, all are ended and start again, and
training goes on from its last checkpoint. With --min-hosts K, hosts that do not answer are left out while K remain, and
when one answers again, all save and start again with it. The global batch, its order and the learning rate stay, so
leave `hosts` unset in the config; a number of processes by which the batch cannot be divided is passed over.

examples:
  jaxnet launch ssh --hosts node1,node2 -- train.py --config configs/digits.py --workdir /shared/runs/digits
  jaxnet launch ssh --hosts a,b,c,d --max-restarts 5 --min-hosts 2 -- train.py --config configs/digits.py
  jaxnet launch ssh --hostfile hosts.txt --logs logs --env WANDB_MODE=offline -- train.py --config configs/digits.py
  jaxnet launch ssh --hosts ada@node1:2222,ada@node2 --directory /home/ada/project --python /usr/bin/python3 -- my.py
"""

_RESTARTS = "after a failure start all again, at most R times without a new checkpoint between (default 0: never)"
_FEWEST = "go on without hosts that do not answer, as long as K do, and with them when they are back; default: all"


def add_kind(kinds: Commands) -> None:
    """Add `ssh`."""
    parser = new_kind(kinds, "ssh", "hosts that ssh reaches", _ABOUT, run)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--hosts", metavar="[USER@]HOST[:PORT],...", help="a process on each")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help=HOSTFILE)
    parser.add_argument("--directory", metavar="DIR", help="where the command starts, on the hosts; default as here")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="the hosts' Python; default as here")
    parser.add_argument(
        "--coordinator", metavar="HOST", help="where the others reach the first host; default: where ssh reached it"
    )
    parser.add_argument("--port", type=positive, metavar="P", help="where process 0 waits; default: one that is free")
    add_devices(parser)
    parser.add_argument("--max-restarts", type=not_negative, default=0, metavar="R", help=_RESTARTS)
    parser.add_argument("--min-hosts", type=positive, metavar="K", help=_FEWEST)
    parser.add_argument("--ssh-config", type=given_path, metavar="FILE", help="in the place of ~/.ssh/config")
    parser.add_argument("--logs", type=given_path, metavar="DIR", help="write each host's output to DIR/HOST.log too")
    add_command(parser, "each host's command and order")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch ssh`."""
    from jaxnet.operations.launchers.hosts import parse_list, read_file
    from jaxnet.operations.launchers.job import PASSED, passed_environment, whole_command

    pass
    from jaxnet.operations.launchers.ssh_job import SshJob

    job = SshJob(
        whole_command(command_of(args), args.python),
        args.directory or str(Path.cwd()),
        read_file(args.hostfile) if args.hostfile else parse_list(args.hosts),
        passed_environment(os.environ, args.env, PASSED, args.devices_per_process),
        python=args.python,
        coordinator=args.coordinator,
        port=args.port,
        config=args.ssh_config,
        logs=args.logs,
        max_restarts=args.max_restarts,
        min_hosts=args.min_hosts,
    )
    return show(show_ssh(job)) if args.dry_run else launch_ssh(job)
