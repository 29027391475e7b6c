"""`jaxnet launch local`: several processes on this machine, joined over loopback."""

import argparse
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.cluster.job_token import TOKEN, new_token
from jaxnet.command_line import Commands, processes_here
from jaxnet.errors import InputError
from jaxnet.operations.launchers.free_port import free_port
from jaxnet.operations.launchers.job import (
    add_command,
    add_devices,
    add_max_restarts,
    check_fewest,
    command_of,
    emulated_devices,
    find_command,
    new_kind,
)
from jaxnet.operations.restarts import RestartLoop
from jaxnet.operations.supervise import Ended, Rank, supervise


def launch_local(
    command: Sequence[str],
    processes: int,
    devices_per_process: int | None = None,
    grace_seconds: float = 10.0,
    max_restarts: int = 0,
    min_processes: int | None = None,
) -> int:
    """Run `command` as that many processes and return the job's exit status, see `supervise`.

    Args:
        command: a .py file, `jaxnet`, or a program, with its arguments.
        processes: how many.
        devices_per_process: CPU devices that each process emulates; None: JAX's default.
        grace_seconds: from SIGTERM to SIGKILL when a process has failed.
        max_restarts: how often a job that failed starts again without progress, see `RestartPolicy`.
        min_processes: down to how many processes restarts may go; None: all are needed.
    """
    check_fewest("processes", min_processes, processes, max_restarts)
    whole = find_command(command)
    gpus = gpus_here(os.environ | emulated_devices(os.environ, devices_per_process))
    if len(gpus) % processes and len(gpus) > processes:
        raise InputError(f"--processes {processes}: the {len(gpus)} GPUs here do not divide among them")

    def ranks(count: int) -> list[Rank]:
        port = free_port()  # a new one for each attempt, so that leftovers of the last one cannot join
        shared = {**os.environ, TOKEN: new_token()}
        environs = [
            rank_environment(shared, index, count, port, devices_per_process) | share_of(gpus, index, count)
            for index in range(count)
        ]
        return [Rank(index, whole, environ) for index, environ in enumerate(environs)]

    if max_restarts == 0:
        return supervise(ranks(processes), grace_seconds)
    with tempfile.TemporaryDirectory(prefix="jaxnet-") as folder:
        members = _LocalMembers(ranks, processes, processes if min_processes is None else min_processes)
        return RestartLoop(members, Path(folder), grace_seconds, max_restarts).run()


class _LocalMembers:
    """The processes of each attempt: one less when the same one always fails, or when they cannot share the batch."""

    def __init__(self, ranks: Callable[[int], Sequence[Rank]], processes: int, fewest: int) -> None:
        self._ranks, self._processes, self._fewest = ranks, processes, fewest
        self._started_with = processes

    def gather(self, attempt: int) -> Sequence[Rank]:
        return self._ranks(self._processes)

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        # After a reduction, an attempt that does no step probably cannot divide the batch by its new number.
        unfit = self._processes < self._started_with and not began
        if self._processes <= self._fewest or not (always or unfit):
            return None
        self._processes -= 1
        return f"{self._processes} processes"

    def await_more(self, over: threading.Event) -> str:
        return ""


def rank_environment(
    environ: Mapping[str, str], index: int, processes: int, port: int, devices: int | None
) -> dict[str, str]:
    """The environment of process `index`: `environ`, with the process's place and unbuffered output."""
    own = {name: value for name, value in environ.items() if name != BIND}
    place = {COORDINATOR: f"127.0.0.1:{port}", COUNT: str(processes), INDEX: str(index)}
    return own | place | {"PYTHONUNBUFFERED": "1"} | emulated_devices(own, devices)


# ---- GPUs: each process gets its own, for NCCL joins no two on one -------------------------------------

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_DEVICES = Path("/dev")


def gpus_here(environ: Mapping[str, str]) -> list[str]:
    """The NVIDIA GPUs of this machine that JAX would compute on, as CUDA_VISIBLE_DEVICES names them."""
    first = environ.get("JAX_PLATFORMS", "").partition(",")[0]
    if first not in ("", "cuda", "gpu") or not any(map(find_spec, _PLUGINS)):
        return []
    there = [str(index) for index in range(len(list(_DEVICES.glob("nvidia[0-9]*"))))]
    if not there or _VISIBLE not in environ:
        return there
    # CUDA sees those before the first name that is none, such as -1.
    named = (name.strip() for name in environ[_VISIBLE].split(","))
    return list(takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, named))


def share_of(gpus: Sequence[str], index: int, processes: int) -> dict[str, str]:
    """The variable that gives process `index` its own of the GPUs, as many as each other gets; none without GPUs.

    After a restart with fewer processes some GPUs may rest.

    Raises:
        InputError: there are fewer GPUs than processes.

    >>> share_of(["0", "1", "2", "3"], 1, 2), share_of([], 1, 2)
    ({'CUDA_VISIBLE_DEVICES': '2,3'}, {})
    """
    if not gpus:
        return {}
    if len(gpus) < processes:
        raise InputError(
            f"--processes {processes}: each wants a GPU of its own, and there "
            f"{'is one' if len(gpus) == 1 else f'are {len(gpus)}'} here; start fewer, or set JAX_PLATFORMS=cpu"
        )
    each = len(gpus) // processes
    return {_VISIBLE: ",".join(gpus[index * each : (index + 1) * each])}


# ---- Command line ---------------------------------------------------------------------------------------

_ABOUT = """\
Start N processes on this machine, joined over loopback. Each line of output begins with the number of its process.
They share out the GPUs, each with its own; where there are fewer GPUs than processes, set JAX_PLATFORMS=cpu.
When one process fails, the others are ended, and its exit status is passed on. No process is left behind.
With --max-restarts, all processes then start again, and training continues from its last checkpoint.

examples:
  jaxnet launch local --processes 2 -- jaxnet train --config configs/digits.py
  jaxnet launch local --processes 4 --devices-per-process 2 -- python my_own_program.py
"""


def add_kind(kinds: Commands) -> None:
    """Add `local` to the kinds of `jaxnet launch`."""
    parser = new_kind(kinds, "local", "on this machine", _ABOUT, run)
    parser.add_argument("--processes", type=processes_here, required=True, metavar="N", help="how many processes")
    add_devices(parser)
    add_max_restarts(parser)
    parser.add_argument(
        "--min-processes",
        type=processes_here,
        metavar="M",
        help="when the same process has used up the restarts, continue with one less, down to M; the batch stays",
    )
    add_command(parser)


def run(args: argparse.Namespace) -> int:
    """Run `jaxnet launch local`."""
    return launch_local(
        command_of(args),
        args.processes,
        args.devices_per_process,
        max_restarts=args.max_restarts,
        min_processes=args.min_processes,
    )
