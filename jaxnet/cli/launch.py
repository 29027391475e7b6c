"""`jaxnet launch KIND ... -- COMMAND`: start the processes of one job. `jaxnet lab`: the same on emulated hosts."""

import argparse

from jaxnet.command_line import Commands, positive, processes_here
from jaxnet.operations.launchers import kubernetes, local, mpi, sky, slurm, ssh, tpu
from jaxnet.operations.launchers.job import add_command, add_devices, command_of

_KINDS = (local, ssh, slurm, mpi, kubernetes, tpu, sky)

_LAUNCH_DESCRIPTION = """\
Start the processes of one job: here, on hosts that ssh reaches, or through a cluster manager. The command after -- is
a .py file, jaxnet, or any program. Each process learns its place from environment variables."""

_LAUNCH_EXAMPLES = """\
examples:
  jaxnet launch local --processes 2 -- jaxnet train --config configs/digits.py
  jaxnet launch local --processes 4 --devices-per-process 2 -- python my_own_program.py
  jaxnet launch ssh --hosts node1,node2 -- jaxnet train --config configs/digits.py
  jaxnet launch slurm --nodes 2 --dry-run -- jaxnet train --config configs/digits.py
  jaxnet launch slurm --help
"""


def add_launch(commands: Commands) -> None:
    """Add `launch` to the commands of `jaxnet`."""
    launch = commands.add_parser(
        "launch", help="start the processes of one job", description=_LAUNCH_DESCRIPTION, epilog=_LAUNCH_EXAMPLES
    )
    kinds = launch.add_commands("KIND")
    for module in _KINDS:
        module.add_kind(kinds)


# ---- Lab -----------------------------------------------------------------------------------------------

_LAB_USAGE = """\
jaxnet lab --hosts N [--rate RATE] [--processes-per-host P] [--devices-per-process D]
                  [--cpus-per-host C] -- COMMAND..."""

_LAB_DESCRIPTION = """\
Run a job on N hosts emulated on this machine. Each host has its own network, name (host0, host1, ...) and address, and
a link of the rate RATE, in each direction, to a switch that joins all. Processes of one host talk over its loopback,
which is fast. Process i runs on host i // P. All run as under `jaxnet launch local`.

This needs Linux, root and iproute2. The hosts share this machine's files and reach nothing outside. Nothing outside is
changed, and nothing is left behind."""

_LAB_EXAMPLES = """\
examples:
  jaxnet lab --hosts 2 --rate 1gbit -- jaxnet train --config configs/digits.py epochs=1
  jaxnet lab --hosts 2 --rate 250mbit --devices-per-process 4 -- jaxnet train --config configs/digits.py
  jaxnet lab --hosts 4 --rate 1gbit --processes-per-host 2 -- jaxnet train --config configs/digits.py hosts=4
  jaxnet lab --hosts 2 -- sh -c 'hostname; ip -brief address; tc qdisc'
"""


def add_lab(commands: Commands) -> None:
    """Add `lab` to the commands of `jaxnet`."""
    parser = commands.add_parser(
        "lab",
        help="run a job on hosts emulated on this machine, with links of a chosen rate",
        usage=_LAB_USAGE,
        description=_LAB_DESCRIPTION,
        epilog=_LAB_EXAMPLES,
    )
    parser.add_argument("--hosts", type=processes_here, required=True, metavar="N", help="how many hosts")
    parser.add_argument(
        "--rate", metavar="RATE", help="rate of each link, such as 1gbit or 250mbit; default: unlimited"
    )
    parser.add_argument(
        "--processes-per-host", type=processes_here, default=1, metavar="P", help="processes on each host; default 1"
    )
    add_devices(parser)
    parser.add_argument(
        "--cpus-per-host",
        type=positive,
        metavar="C",
        help="give each host C CPU cores of its own; default: all hosts share all",
    )
    add_command(parser)
    parser.set_defaults(run=run_lab)


def run_lab(args: argparse.Namespace) -> int:
    """Run `jaxnet lab`."""
    from jaxnet.operations.lab.network import parse_rate
    from jaxnet.operations.lab.run import Lab, run_lab

    rate = None if args.rate is None else parse_rate(args.rate)
    lab = Lab(args.hosts, rate, args.processes_per_host, args.devices_per_process, args.cpus_per_host)
    return run_lab(command_of(args), lab)
