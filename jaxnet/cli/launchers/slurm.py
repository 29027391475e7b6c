"""`jaxnet launch slurm`."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxnet.cli.launchers.common import add_command, add_devices, command_of, new_kind, not_negative, show
from jaxnet.cli.parser import positive
from jaxnet.errors import InputError

if TYPE_CHECKING:
    from jaxnet.cli.launchers.common import Kinds

_ABOUT = """\
Submit a batch job of one process a host, or several. Before the time limit the processes are told to save and
end, and with --requeue the job then waits for its next turn, where the trainer continues. The job runs in this
folder with this Python, which all hosts must see.

examples:
  jaxnet launch slurm --nodes 2 --gpus-per-process 8 --time 4:00:00 --requeue 10 -- train.py --config configs/digits.py
  jaxnet launch slurm --nodes 4 --partition main --dry-run -- train.py --config configs/digits.py hosts=4
  jaxnet launch slurm --nodes 1 --experiment '--workdir runs/a seed=0' --experiment '--workdir runs/b seed=1' \\
      -- train.py --config configs/digits.py
"""


def add_kind(kinds: "Kinds") -> None:
    """Add `slurm`."""
    parser = new_kind(kinds, "slurm", "a batch job of Slurm", _ABOUT, run)
    parser.add_argument("--nodes", type=positive, required=True, metavar="N", help="how many hosts")
    parser.add_argument("--processes-per-node", type=positive, default=1, metavar="P", help="default 1")
    parser.add_argument("--gpus-per-process", type=positive, metavar="G", help="GPUs bound to each process")
    parser.add_argument("--cpus-per-process", type=positive, metavar="C", help="CPU cores of each process")
    add_devices(parser)
    parser.add_argument("--time", metavar="T", help="the time limit, as Slurm writes it: 30, 4:00:00, 1-12:00:00")
    parser.add_argument("--partition", metavar="NAME", help="default: Slurm's own")
    parser.add_argument("--account", metavar="NAME", help="default: Slurm's own")
    parser.add_argument("--name", default="jaxnet", help="of the job; default jaxnet")
    parser.add_argument(
        "--requeue",
        type=not_negative,
        default=0,
        metavar="N",
        help="queue the job again, up to N times, when the time limit ends it, and when a host fails; default 0",
    )
    parser.add_argument(
        "--warn", type=positive, default=120, metavar="S", help="say stop S seconds before the limit; default 120"
    )
    parser.add_argument(
        "--experiment",
        action="append",
        default=[],
        metavar="WORDS",
        help="a job of its own with these words added to the command; may be repeated",
    )
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="further, as in --sbatch=--qos=high"
    )
    add_command(parser, "the batch script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch slurm`."""
    from jaxnet.cluster.launchers.job import PASSED, passed_environment, whole_command
    from jaxnet.cluster.launchers.slurm import SlurmJob, slurm_script, submit

    script = slurm_script(
        SlurmJob(
            whole_command(command_of(args), sys.executable),
            str(Path.cwd()),
            passed_environment(os.environ, args.env, PASSED, args.devices_per_process),
            name=args.name,
            nodes=args.nodes,
            processes_per_node=args.processes_per_node,
            gpus_per_process=args.gpus_per_process,
            cpus_per_process=args.cpus_per_process,
            time=args.time,
            partition=args.partition,
            account=args.account,
            requeue=args.requeue,
            warn_seconds=args.warn,
            experiments=[_words(text) for text in args.experiment],
            options=args.sbatch,
        )
    )
    return show(script) if args.dry_run else submit(script)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--experiment {text!r}: {str(error).lower()}; quote as in a shell") from None
