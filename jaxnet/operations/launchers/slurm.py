"""`jaxnet launch slurm`."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.command_line import Commands, add_command, add_devices, command_of, new_kind, not_negative, positive, show
from jaxnet.errors import InputError
from jaxnet.operations.launchers.job import FORGET, array, check_word, exports, feed, task

# ---- A Slurm batch script: one step of all processes, stopped in good order before the time limit -----
#
# The script names the coordinator and each process's place itself, although JAX can find both: JAX would then
# give the process with local number k the device k alone, which leaves a host's other devices idle where there
# is one process a host, and does not exist where Slurm has bound a device to each process.


_ONE_JOB = "$SLURM_JOB_ID"
_ONE_OF_ARRAY = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"  # the first of an array has the id of the whole array


@dataclass(frozen=True)
class SlurmJob:
    """What is asked of Slurm.

    Attributes:
        command: what every process executes, in `directory` and with `environment`.
        requeue: how often the job is queued again when the time limit has come near. 0 also means that
            Slurm must not start it again after a node has failed.
        warn_seconds: how long before the time limit the processes get SIGTERM, to save and end.
        experiments: with any, an array of jobs; each adds its words to `command`.
        options: further options of sbatch, such as `--qos=high`.
    """

    command: Sequence[str]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "jaxnet"
    nodes: int = 1
    processes_per_node: int = 1
    gpus_per_process: int | None = None
    cpus_per_process: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    requeue: int = 0
    warn_seconds: int = 120
    experiments: Sequence[Sequence[str]] = ()
    options: Sequence[str] = ()


def slurm_script(job: SlurmJob) -> str:
    """The batch script."""
    if "transport=mpi" in job.command:
        raise InputError("the command says transport=mpi: inside a job, use jaxnet launch mpi --starter srun")
    parts = [
        "#!/bin/bash\n# Made by `jaxnet launch slurm`; `sbatch FILE` submits it.\n" + _directives(job),
        "set -euo pipefail",
        f"cd -- {shlex.quote(job.directory)}\n{exports(job.environment)}\n{FORGET}",
        array("command", job.command),
    ]
    if job.experiments:
        parts.append(_choose(job.experiments))
    return "\n\n".join([*parts, _coordinator(), _step(job), _end(job.requeue)]) + "\n"


def submit(script: str) -> int:
    """Give `script` to sbatch; the result is its exit status."""
    return feed(script, "sbatch", missing="run this where Slurm's jobs are submitted")


def _directives(job: SlurmJob) -> str:
    asked: list[tuple[str, object]] = [
        ("--job-name", job.name),
        ("--nodes", job.nodes),
        ("--ntasks-per-node", job.processes_per_node),
        ("--gpus-per-task", job.gpus_per_process),
        ("--cpus-per-task", job.cpus_per_process),
        ("--time", job.time),
        ("--partition", job.partition),
        ("--account", job.account),
        ("--array", f"0-{len(job.experiments) - 1}" if job.experiments else None),
        ("--signal", f"B:USR1@{job.warn_seconds}"),
    ]
    lines = [f"{name}={check_word(name, str(value))}" for name, value in asked if value is not None]
    lines += ["--requeue" if job.requeue else "--no-requeue", "--open-mode=append"]
    return "\n".join(f"#SBATCH {line}" for line in [*lines, *map(_option, job.options)])


def _option(text: str) -> str:
    if not text.startswith("--"):
        raise InputError(f"--sbatch {text!r}: wanted an option of sbatch, as in --sbatch=--qos=high")
    return "--" + check_word("--sbatch", text[2:])


def _choose(experiments: Sequence[Sequence[str]]) -> str:
    cases = [f"  {index}) command+=({shlex.join(words)}) ;;" for index, words in enumerate(experiments)]
    return "\n".join(['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"])


def _coordinator() -> str:
    return """\
# Process 0 is on the first host. The port is outside the range from which Linux gives ports away.
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export JAX_COORDINATOR_ADDRESS="$first:$((61440 + SLURM_JOB_ID % 4096))"
""" + task("SLURM_PROCID", "SLURM_NTASKS")


def _step(job: SlurmJob) -> str:
    # Since 22.05, srun does not take this one over from sbatch.
    cpus = f"--cpus-per-task={job.cpus_per_process} " if job.cpus_per_process else ""
    return f"""\
# Near the time limit the processes are asked to save and end. Only this way do they and not srun get the signal.
job="{_ONE_OF_ARRAY if job.experiments else _ONE_JOB}"
near_limit=false
trap 'near_limit=true; scancel --signal=TERM "$job" || true' USR1
srun --kill-on-bad-exit=1 {cpus}/bin/sh -c "$task" sh "${{command[@]}}" &
step=$!
status=0
wait "$step" || status=$?
if "$near_limit"; then  # which ended the first wait
  status=0
  wait "$step" || status=$?
fi"""


def _end(requeue: int) -> str:
    if not requeue:
        return 'exit "$status"'
    return f"""\
if "$near_limit" && ((status == 0 && ${{SLURM_RESTART_COUNT:-0}} < {requeue})); then
  echo "The time limit is near: job $job is queued again."
  scontrol requeue "$job"
fi
exit "$status\""""


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


def add_kind(kinds: Commands) -> None:
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
    from jaxnet.operations.launchers.job import PASSED, passed_environment, whole_command

    pass

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
