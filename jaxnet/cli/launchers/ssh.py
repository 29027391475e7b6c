"""`jaxnet launch ssh`."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import (
    HOSTFILE,
    add_command,
    add_devices,
    command_of,
    new_kind,
    not_negative,
    show,
)
from jaxnet.cli.parser import given_path, positive

if TYPE_CHECKING:
    from jaxnet.cli.launchers.common import Kinds

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


def add_kind(kinds: "Kinds") -> None:
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
    from jaxnet.cluster.launchers.hosts import parse_list, read_file
    from jaxnet.cluster.launchers.job import PASSED, passed_environment, whole_command
    from jaxnet.cluster.launchers.ssh import launch_ssh, show_ssh
    from jaxnet.cluster.launchers.ssh_job import SshJob

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
