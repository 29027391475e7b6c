"""`jaxnet launch KIND ... -- COMMAND`: start the processes of one job."""

import argparse

from jaxnet.command_line import Commands, add_devices, add_words, command_of, not_negative, positive
from jaxnet.operations.launchers import kubernetes, mpi, sky, slurm, ssh, tpu

_KINDS = (ssh, slurm, mpi, kubernetes, tpu, sky)  # beside local

_LAUNCH_USAGE = "jaxnet launch local --processes N [--devices-per-process D] [--max-restarts R] -- COMMAND..."
_RESTARTS = "after a failure start all again, at most R times without a new checkpoint between (default 0: never)"
_FEWEST = "when the same process has used up the restarts, go on with one less, down to M; the batch stays as it is"
_LOCAL = """\
Start N processes on this machine, joined over loopback. Output is prefixed with the number of the
process; when one fails, all are ended and its exit status is passed on; nothing is left behind.
With --max-restarts all are then started again, and training goes on from its last checkpoint."""

_LAUNCH_EXAMPLES = """\
examples:
  jaxnet launch local --processes 2 -- train.py --config configs/digits.py
  jaxnet launch local --processes 4 --devices-per-process 2 -- python my_own_program.py
"""
_MORE_EXAMPLES = """\
  jaxnet launch ssh --hosts node1,node2 -- train.py --config configs/digits.py
  jaxnet launch slurm --nodes 2 --dry-run -- train.py --config configs/digits.py
  jaxnet launch slurm --help
"""


def add_launch(commands: Commands) -> None:
    """Add `launch` to the commands of `jaxnet`."""
    launch = commands.add_parser(
        "launch", help="start the processes of one job", description=__doc__, epilog=_LAUNCH_EXAMPLES + _MORE_EXAMPLES
    )
    kinds = launch.add_commands("KIND")
    _add_local(kinds)
    for module in _KINDS:
        module.add_kind(kinds)


def _add_local(kinds: Commands) -> None:
    local = kinds.add_parser(
        "local", help="on this machine", usage=_LAUNCH_USAGE, description=_LOCAL, epilog=_LAUNCH_EXAMPLES
    )
    local.add_argument("--processes", type=positive, required=True, metavar="N", help="how many processes")
    add_devices(local)
    local.add_argument("--max-restarts", type=not_negative, default=0, metavar="R", help=_RESTARTS)
    local.add_argument("--min-processes", type=positive, metavar="M", help=_FEWEST)
    add_words(local)
    local.set_defaults(run=run_local)


def run_local(args: argparse.Namespace) -> int:
    """Run `jaxnet launch local`."""
    from jaxnet.operations.local import launch_local

    return launch_local(
        command_of(args),
        args.processes,
        args.devices_per_process,
        max_restarts=args.max_restarts,
        min_processes=args.min_processes,
    )


# ---- `jaxnet lab ... -- COMMAND`: one Linux machine as several hosts, joined by links of a chosen speed


_LAB_USAGE = """\
jaxnet lab --hosts N [--rate RATE] [--processes-per-host P] [--devices-per-process D]
                  [--cpus-per-host C] -- COMMAND..."""

_LAB_DESCRIPTION = """\
Run a job on N hosts that are made of this machine: each has its own network, host name (host0, host1, ...) and
address, and is joined to the others by a link of the speed RATE, in both directions. Processes of one host talk
over its loopback, which is fast. Process i runs on host i // P; all run as under `jaxnet launch local`.

It needs Linux, root and iproute2. The hosts cannot reach anything outside, and share this machine's files.
Nothing outside is changed, and nothing is left behind."""

_LAB_EXAMPLES = """\
examples:
  jaxnet lab --hosts 2 --rate 1gbit -- train.py --config configs/digits.py epochs=1
  jaxnet lab --hosts 2 --rate 250mbit --devices-per-process 4 -- train.py --config configs/digits.py
  jaxnet lab --hosts 4 --rate 1gbit --processes-per-host 2 -- train.py --config configs/digits.py hosts=4
  jaxnet lab --hosts 2 -- sh -c 'hostname; ip -brief address; tc qdisc'
"""


def add_lab(commands: Commands) -> None:
    """Add `lab` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "lab",
        help="run a job on hosts emulated on this machine, with links of a chosen speed",
        usage=_LAB_USAGE,
        description=_LAB_DESCRIPTION,
        epilog=_LAB_EXAMPLES,
    )
    parser.add_argument("--hosts", type=positive, required=True, metavar="N", help="how many hosts")
    parser.add_argument("--rate", metavar="RATE", help="of each link, such as 1gbit or 250mbit; default unlimited")
    parser.add_argument("--processes-per-host", type=positive, default=1, metavar="P", help="default 1")
    add_devices(parser)
    parser.add_argument(
        "--cpus-per-host", type=positive, metavar="C", help="give each host C CPU cores of its own; default: share all"
    )
    add_words(parser)
    parser.set_defaults(run=run_lab)


def run_lab(args: argparse.Namespace) -> int:
    """Run `jaxnet lab`."""
    from jaxnet.operations.lab.network import parse_rate
    from jaxnet.operations.lab.run import Lab, run_lab

    rate = None if args.rate is None else parse_rate(args.rate)
    lab = Lab(args.hosts, rate, args.processes_per_host, args.devices_per_process, args.cpus_per_host)
    return run_lab(command_of(args), lab)
