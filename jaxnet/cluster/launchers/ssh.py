"""A job on hosts that ssh reaches: one connection a host, over which signals go and whose end ends all.

Host keys are always checked, and nothing is asked: `ssh HOST true` has to work without a question.
"""

import json
import shlex
import tempfile
from pathlib import Path

from jaxnet.cluster.address import Address
from jaxnet.cluster.launchers.shell import need
from jaxnet.cluster.launchers.ssh_asking import ask, coordinator_of
from jaxnet.cluster.launchers.ssh_hosts import Hosts
from jaxnet.cluster.launchers.ssh_job import SshJob, connections, orders, processes, ssh_command
from jaxnet.cluster.restarting import Restarting
from jaxnet.cluster.supervise import supervise
from jaxnet.errors import InputError


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
        shown += f"\n# {host.name}: this, and as its input jaxnet/cluster/launchers/ssh_agent.py with the order below\n"
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
