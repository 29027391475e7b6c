"""`jaxnet launch slurm`: a batch script with one step of all processes, stopped in good order before its time limit."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxnet.command_line import Commands, hosts_in_all, not_negative, positive, processes_here
from jaxnet.errors import InputError
from jaxnet.operations.launchers.container import Container, add_container, contained, container_of, srun_options
from jaxnet.operations.launchers.job import (
    PASSED,
    add_devices,
    add_job_options,
    check_word,
    command_of,
    new_kind,
    passed_environment,
    show,
    whole_command,
)
from jaxnet.operations.launchers.script import array, define_task, feed, new_secret, setup

_ONE_JOB = "$SLURM_JOB_ID"
# In one job of an array, SLURM_JOB_ID may be the number of the whole array.
_ONE_OF_ARRAY = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"


@dataclass(frozen=True)
class SlurmJob:
    """A job for Slurm.

    Attributes:
        command: what every process executes, in `directory` and with `environment`.
        gpus_per_node: of each host, which its processes share out: process k of a host takes the k-th part.
        gpus_per_process: instead, GPUs that Slurm binds to each process; the others of its host do not exist for it.
        container: where given, every process runs in it.
        before: lines of shell that the script runs first, such as `module load cuda`.
        requeue: how often the job enters the queue again when its time limit is near. With 0, Slurm does not start it
            again after a host has failed either.
        warn_seconds: how long before the time limit the processes get SIGTERM, to save and end.
        experiments: where given, the job becomes an array, and each of its jobs adds one of these to `command`.
        options: further options of sbatch, such as `--qos=high`.
    """

    command: Sequence[str]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "jaxnet"
    nodes: int = 1
    processes_per_node: int = 1
    gpus_per_node: int | None = None
    gpus_per_process: int | None = None
    cpus_per_process: int | None = None
    container: Container | None = None
    before: Sequence[str] = ()
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
    gpus = bool(job.gpus_per_node or job.gpus_per_process)
    environment = dict(job.environment)
    if job.container:
        environment["PYTHONNOUSERSITE"] = "1"  # packages in the home folder are not those of the image
    parts = [
        "#!/bin/bash\n# Made by `jaxnet launch slurm`; `sbatch FILE` submits it.\n" + _directives(job),
        _begin(job.before),
        *setup(job.directory, environment, contained(job.command, job.container, job.directory, gpus=gpus)),
    ]
    options = srun_options(job.container, job.directory, environment)
    if options:
        parts.append(array("container", options))
    if job.experiments:
        parts.append(_choose(job.experiments))
    return (
        "\n\n".join([*parts, _coordinator(job), _step(job, '"${container[@]}" ' if options else ""), _end(job.requeue)])
        + "\n"
    )


def _directives(job: SlurmJob) -> str:
    asked: list[tuple[str, object]] = [
        ("--job-name", job.name),
        ("--nodes", job.nodes),
        ("--ntasks-per-node", job.processes_per_node),
        ("--gpus-per-node", job.gpus_per_node),
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


def _begin(before: Sequence[str]) -> str:
    if not before:
        return "set -euo pipefail"
    # Environment Modules and Lmod read variables that are not set.
    return "\n".join(["set -eo pipefail", *before, "set -u"])


def _choose(experiments: Sequence[Sequence[str]]) -> str:
    cases = [f"  {index}) command+=({shlex.join(words)}) ;;" for index, words in enumerate(experiments)]
    return "\n".join(['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"])


def _coordinator(job: SlurmJob) -> str:
    # The script names the coordinator and each process's place, although JAX can find both under Slurm. JAX would then
    # give the process with local number k the device k alone. With one process a host that leaves the other devices
    # idle, and where Slurm has bound one device to each process, device k does not exist.
    return """\
# Process 0 is on the first host. The port is outside the range from which Linux gives ports away.
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export JAX_COORDINATOR_ADDRESS="$first:$((61440 + SLURM_JOB_ID % 4096))"
""" + "\n".join([new_secret(), define_task("SLURM_PROCID", "SLURM_NTASKS", _own_gpus(job))])


def _own_gpus(job: SlurmJob) -> list[str]:
    """Lines by which a process takes its part of the GPUs of its host; none where it takes all of them.

    NCCL copies between two GPUs of a host directly only if each process may open the other's. It may where the process
    hides them by CUDA_VISIBLE_DEVICES, and may not where Slurm binds them (`--gpus-per-task`).
    """
    if job.gpus_per_node is None or job.processes_per_node == 1:
        return []
    each, left = divmod(job.gpus_per_node, job.processes_per_node)
    if left:
        raise InputError(
            f"--gpus-per-node {job.gpus_per_node} does not divide among --processes-per-node {job.processes_per_node}"
        )
    fields = "$((SLURM_LOCALID + 1))"
    if each > 1:
        fields = f"$((SLURM_LOCALID * {each} + 1))-$((SLURM_LOCALID * {each} + {each}))"
    return [
        "# Its own of the GPUs of this host:",
        f'CUDA_VISIBLE_DEVICES=$(echo "${{CUDA_VISIBLE_DEVICES:?}}" | cut -d, -f"{fields}")',
        "export CUDA_VISIBLE_DEVICES",
    ]


def _step(job: SlurmJob, container: str) -> str:
    # Since 22.05, srun no longer takes this option over from sbatch.
    cpus = f"--cpus-per-task={job.cpus_per_process} " if job.cpus_per_process else ""
    return f"""\
# Near the time limit, tell the processes to save and end. This way they get the signal, and srun does not.
job="{_ONE_OF_ARRAY if job.experiments else _ONE_JOB}"
near_limit=false
trap 'near_limit=true; scancel --signal=TERM "$job" || true' USR1
srun --kill-on-bad-exit=1 {cpus}{container}/bin/sh -c "$task" sh "${{command[@]}}" &
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


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Submit a batch job with one process a host, or several. Shortly before the time limit the processes are told to save
and end. With --requeue the job then enters the queue again, and training continues where it stopped. The job runs in
this folder with this Python, and every host must see both; or in a container, with the Python of the image.

examples:
  jaxnet launch slurm --nodes 2 --gpus-per-node 8 --time 4:00:00 --requeue 10 \\
      -- jaxnet train --config configs/digits.py
  jaxnet launch slurm --nodes 2 --gpus-per-node 8 --processes-per-node 8 --before 'module load cuda' \\
      -- jaxnet train --config configs/digits.py
  jaxnet launch slurm --nodes 2 --gpus-per-node 8 --pyxis /shared/jaxnet.sqsh --mount /data \\
      -- jaxnet train --config configs/digits.py
  jaxnet launch slurm --nodes 4 --partition main --dry-run -- jaxnet train --config configs/digits.py hosts=4
  jaxnet launch slurm --nodes 1 --experiment '--workdir runs/a seed=0' --experiment '--workdir runs/b seed=1' \\
      -- jaxnet train --config configs/digits.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `slurm` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "slurm", "a batch job of Slurm", _ABOUT, run)
    parser.add_argument("--nodes", type=hosts_in_all, required=True, metavar="N", help="how many hosts")
    parser.add_argument("--processes-per-node", type=processes_here, default=1, metavar="P", help="default 1")
    gpus = parser.add_mutually_exclusive_group()
    gpus.add_argument(
        "--gpus-per-node", type=positive, metavar="G", help="GPUs of each host; its processes share them out"
    )
    gpus.add_argument(
        "--gpus-per-process", type=positive, metavar="G", help="GPUs that Slurm binds to each process, instead"
    )
    parser.add_argument("--cpus-per-process", type=positive, metavar="C", help="CPU cores of each process")
    add_devices(parser)
    add_container(parser)
    parser.add_argument(
        "--python", metavar="PATH", help="the hosts' Python; default: this one, and in a container python3"
    )
    parser.add_argument(
        "--before",
        action="append",
        default=[],
        metavar="SHELL",
        help="a line that the script runs first, as in --before 'module load cuda'; may be repeated",
    )
    parser.add_argument("--time", metavar="T", help="the time limit in Slurm's form: 30, 4:00:00, 1-12:00:00")
    parser.add_argument("--partition", metavar="NAME", help="default: Slurm's own")
    parser.add_argument("--account", metavar="NAME", help="default: Slurm's own")
    parser.add_argument("--name", default="jaxnet", help="name of the job; default jaxnet")
    parser.add_argument(
        "--requeue",
        type=not_negative,
        default=0,
        metavar="N",
        help="queue the job again, up to N times, when its time limit ends it or a host fails; default 0",
    )
    parser.add_argument(
        "--warn",
        type=positive,
        default=120,
        metavar="S",
        help="tell the processes to stop S seconds before the limit; default 120",
    )
    parser.add_argument(
        "--experiment",
        action="append",
        default=[],
        metavar="WORDS",
        help="submit a separate job with these words added to the command; may be repeated",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="another option of sbatch, as in --sbatch=--qos=high; may be repeated",
    )
    add_job_options(parser, "the batch script")


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch slurm`."""
    container = container_of(args)
    python = args.python or ("python3" if container else sys.executable)
    script = slurm_script(
        SlurmJob(
            whole_command(command_of(args), python),
            str(Path.cwd()),
            passed_environment(os.environ, args.env, PASSED, args.devices_per_process),
            name=args.name,
            nodes=args.nodes,
            processes_per_node=args.processes_per_node,
            gpus_per_node=args.gpus_per_node,
            gpus_per_process=args.gpus_per_process,
            cpus_per_process=args.cpus_per_process,
            container=container,
            before=args.before,
            time=args.time,
            partition=args.partition,
            account=args.account,
            requeue=args.requeue,
            warn_seconds=args.warn,
            experiments=[_words(text) for text in args.experiment],
            options=args.sbatch,
        )
    )
    if args.dry_run:
        return show(script)
    return feed(script, "sbatch", cure="run this where Slurm's jobs are submitted")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--experiment {text!r}: {str(error).lower()}; quote as in a shell") from None
