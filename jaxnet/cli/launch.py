"""`jaxnet launch KIND ... -- COMMAND`: start the processes of one job."""

import argparse
from typing import TYPE_CHECKING

from jaxnet.cli.launchers import kubernetes, mpi, sky, slurm, ssh, tpu
from jaxnet.cli.launchers.common import add_devices, add_words, command_of, not_negative
from jaxnet.cli.parser import Parser, positive

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

_KINDS = (ssh, slurm, mpi, kubernetes, tpu, sky)  # beside local

_USAGE = "jaxnet launch local --processes N [--devices-per-process D] [--max-restarts R] -- COMMAND..."
_RESTARTS = "after a failure start all again, at most R times without a new checkpoint between (default 0: never)"
_FEWEST = "when the same process has used up the restarts, go on with one less, down to M; the batch stays as it is"
_LOCAL = """\
Start N processes on this machine, joined over loopback. Output is prefixed with the number of the
process; when one fails, all are ended and its exit status is passed on; nothing is left behind.
With --max-restarts all are then started again, and training goes on from its last checkpoint."""

_EXAMPLES = """\
examples:
  jaxnet launch local --processes 2 -- train.py --config configs/digits.py
  jaxnet launch local --processes 4 --devices-per-process 2 -- python my_own_program.py
"""
_MORE_EXAMPLES = """\
  jaxnet launch ssh --hosts node1,node2 -- train.py --config configs/digits.py
  jaxnet launch slurm --nodes 2 --dry-run -- train.py --config configs/digits.py
  jaxnet launch slurm --help
"""


def add_parser(commands: "Commands") -> None:
    """Add `launch` to the commands of `jaxnet`."""
    launch = commands.add_parser(
        "launch", help="start the processes of one job", description=__doc__, epilog=_EXAMPLES + _MORE_EXAMPLES
    )
    kinds = launch.add_commands("KIND")
    _add_local(kinds)
    for module in _KINDS:
        module.add_kind(kinds)


def _add_local(kinds: "Commands") -> None:
    local = kinds.add_parser("local", help="on this machine", usage=_USAGE, description=_LOCAL, epilog=_EXAMPLES)
    local.add_argument("--processes", type=positive, required=True, metavar="N", help="how many processes")
    add_devices(local)
    local.add_argument("--max-restarts", type=not_negative, default=0, metavar="R", help=_RESTARTS)
    local.add_argument("--min-processes", type=positive, metavar="M", help=_FEWEST)
    add_words(local)
    local.set_defaults(run=run_local)


def run_local(args: argparse.Namespace) -> int:
    """Run `jaxnet launch local`."""
    from jaxnet.cluster.local import launch_local

    return launch_local(
        command_of(args),
        args.processes,
        args.devices_per_process,
        max_restarts=args.max_restarts,
        min_processes=args.min_processes,
    )
