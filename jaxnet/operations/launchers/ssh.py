"""`jaxnet launch ssh`: a job on hosts that ssh reaches, with one connection for each host.

Signals go over the connections, and when a connection ends, nothing is left on its host. Host keys are always checked,
and ssh asks no question: `ssh HOST true` must work without one.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from jaxnet.cluster.addresses import Address
from jaxnet.command_line import Commands, given_path, port, positive
from jaxnet.errors import InputError
from jaxnet.operations.launchers.hosts import parse_list, read_file
from jaxnet.operations.launchers.job import (
    HOSTFILE,
    PASSED,
    add_devices,
    add_job_options,
    add_max_restarts,
    check_fewest,
    command_of,
    new_kind,
    passed_environment,
    show,
    whole_command,
)
from jaxnet.operations.launchers.script import find_program
from jaxnet.operations.launchers.ssh_hosts import SshMembers, coordinator_of, probe
from jaxnet.operations.launchers.ssh_job import SshJob, connections, orders, processes, ssh_command
from jaxnet.operations.restarts import RestartLoop
from jaxnet.operations.supervise import supervise


def launch_ssh(job: SshJob) -> int:
    """Run `job` and return its exit status, see `supervise`. A rank, in messages, is a host.

    With `max_restarts`, a job that fails starts again on the hosts that then answer, see `RestartLoop`.
    """
    check_fewest("hosts", job.min_hosts, len(job.hosts), job.max_restarts)
    find_program("ssh", "install it (on Debian and Ubuntu: apt-get install openssh-client)")
    if job.logs is not None:
        _make_folder(job.logs)
    if job.max_restarts == 0:
        return supervise(connections(job, *_find_coordinator(job)), job.grace_seconds)
    with tempfile.TemporaryDirectory(prefix="jaxnet-") as folder:
        return RestartLoop(SshMembers(job), Path(folder), job.grace_seconds, job.max_restarts).run()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--logs {path}: {error.strerror}; give a folder that can be made") from None


def _find_coordinator(job: SshJob) -> tuple[Address, Address | None]:
    first = job.hosts[0]
    if job.coordinator is not None and job.port is not None:
        return Address(job.coordinator, job.port), None
    if processes(job.hosts) == 1:
        return Address(first.name, 1), None  # one process alone calls nobody
    answer = probe(first, job)
    if isinstance(answer, str):
        raise InputError(
            f"cannot start on {first.name}: {answer}; `ssh {first.name} {job.python} --version` must work without a"
            " question (log in once by hand to see and accept its key)"
        )
    return coordinator_of(job, answer)


def show_ssh(job: SshJob) -> str:
    """What `launch_ssh` would run and send to each host, without contacting any."""
    check_fewest("hosts", job.min_hosts, len(job.hosts), job.max_restarts)
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


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Start one process on each host, or one for each slot, over one ssh connection a host. Each line of output begins with
the number of its host (and of its process, where a host runs several). When one process fails, all are ended and its
exit status is passed on. Ctrl-C and SIGTERM reach the processes. When a connection ends, nothing is left on its host.

ssh must log in with a key and ask no question. The hosts' own keys must be known, because they are always checked.

With --max-restarts, when a process fails, a host dies or its link is silent for 15 s, all processes end and start
again, and training continues from its last checkpoint. With --min-hosts K, hosts that do not answer are left out while
K remain; when one answers again, all save and start again with it. The global batch, its order and the learning rate
stay, so leave `hosts` unset in the config. A number of processes that does not divide the batch is passed over.

examples:
  jaxnet launch ssh --hosts node1,node2 -- jaxnet train --config configs/digits.py --workdir /shared/runs/digits
  jaxnet launch ssh --hosts a,b,c,d --max-restarts 5 --min-hosts 2 -- jaxnet train --config configs/digits.py
  jaxnet launch ssh --hostfile hosts.txt --logs logs --env WANDB_MODE=offline -- jaxnet train --config configs/digits.py
  jaxnet launch ssh --hosts ada@node1:2222,ada@node2 --directory /home/ada/project --python /usr/bin/python3 -- my.py
"""

_MIN_HOSTS = "continue without hosts that do not answer while K do, and with them once they are back; default: all"


def add_kind(kinds: Commands) -> None:
    """Add `ssh` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "ssh", "hosts that ssh reaches", _ABOUT, run)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--hosts", metavar="[USER@]HOST[:PORT],...", help="the hosts, with one process on each")
    where.add_argument("--hostfile", type=given_path, metavar="FILE", help=HOSTFILE)
    parser.add_argument(
        "--directory", metavar="DIR", help="where the command starts on the hosts; default: the path of this folder"
    )
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="the hosts' Python; default: the path of this one"
    )
    parser.add_argument(
        "--coordinator",
        metavar="HOST",
        help="where the other hosts reach the first; default: the address by which ssh did",
    )
    parser.add_argument("--port", type=port, metavar="P", help="where process 0 listens; default: a free port")
    add_devices(parser)
    add_max_restarts(parser)
    parser.add_argument("--min-hosts", type=positive, metavar="K", help=_MIN_HOSTS)
    parser.add_argument("--ssh-config", type=given_path, metavar="FILE", help="a file in place of ~/.ssh/config")
    parser.add_argument("--logs", type=given_path, metavar="DIR", help="also write each host's output to DIR/HOST.log")
    add_job_options(parser, "each host's command and order")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch ssh`."""
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
