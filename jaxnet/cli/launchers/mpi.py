"""`jaxnet launch mpi`."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import HOSTFILE, add_command, add_devices, command_of, new_kind, show
from jaxnet.cli.parser import positive

if TYPE_CHECKING:
    from jaxnet.cli.launchers.common import Kinds

_ABOUT = """\
Start the processes with mpirun, of Open MPI or MPICH, or with srun. By default MPI does no more than that, and
JAX joins the processes; with --transport mpi their gradients travel by MPI, as transport=mpi in the config says
(a .py file then runs under `python -m mpi4py`, which ends all ranks when one fails).

examples:
  jaxnet launch mpi --processes 2 --hosts node1,node2 -- train.py --config configs/digits.py
  jaxnet launch mpi --processes 8 --hosts node1:4,node2:4 --transport mpi -- train.py --config c.py transport=mpi
  jaxnet launch mpi --processes 2 --starter mpich --dry-run -- train.py --config configs/digits.py
"""


def add_kind(kinds: "Kinds") -> None:
    """Add `mpi`."""
    parser = new_kind(kinds, "mpi", "ranks of mpirun", _ABOUT, run)
    parser.add_argument("--processes", type=positive, required=True, metavar="N", help="how many in all")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="HOST[:SLOTS],...", help="where they run; default here")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help=HOSTFILE)
    parser.add_argument(
        "--starter", choices=("openmpi", "mpich", "srun"), default="openmpi", help="whose mpirun; default openmpi"
    )
    parser.add_argument("--transport", choices=("xla", "mpi"), default="xla", help="as in the config; default xla")
    parser.add_argument("--port", type=positive, metavar="P", help="where process 0 waits for the others")
    add_devices(parser)
    parser.add_argument(
        "--option", action="append", default=[], metavar="WORD", help="for the starter, as in --option=--oversubscribe"
    )
    add_command(parser, "the script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch mpi`."""
    from jaxnet.cluster.launchers.hosts import parse_list, read_file
    from jaxnet.cluster.launchers.job import PASSED, PORT, passed_environment, whole_command
    from jaxnet.cluster.launchers.mpi import MpiJob, check_starter, mpi_script
    from jaxnet.cluster.launchers.shell import become

    hosts = read_file(args.hostfile) if args.hostfile else parse_list(args.hosts, "slots") if args.hosts else []
    command = whole_command(command_of(args), sys.executable)
    if args.transport == "mpi" and command[0] == sys.executable:
        command[1:1] = ["-m", "mpi4py"]
    script = mpi_script(
        MpiJob(
            command,
            str(Path.cwd()),
            args.processes,
            passed_environment(os.environ, args.env, PASSED, args.devices_per_process),
            hosts=hosts,
            starter=args.starter,
            transport=args.transport,
            port=args.port or PORT,
            options=args.option,
        )
    )
    if args.dry_run:
        return show(script)
    check_starter(args.starter)
    become(script)
