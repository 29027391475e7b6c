"""Several processes on this machine, joined over loopback: for trying out, for tests, for one large host."""

import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxnet.cluster.environment import BIND, COORDINATOR, COUNT, INDEX
from jaxnet.errors import InputError
from jaxnet.operations.restarts import Restarting
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

    With `devices_per_process`, each process emulates that many CPU devices. With `max_restarts`, a job that fails is
    started again, see `Restarts`, and with `min_processes` at last with fewer; a program of ours goes on from its last
    checkpoint.
    """
    whole = find_command(command)

    def ranks(count: int) -> list[Rank]:
        port = _free_port()  # another each time, so that what is left of an attempt cannot join the next
        environs = [rank_environment(os.environ, index, count, port, devices_per_process) for index in range(count)]
        return [Rank(index, whole, environ) for index, environ in enumerate(environs)]

    if max_restarts == 0:
        return supervise(ranks(processes), grace_seconds)
    with tempfile.TemporaryDirectory(prefix="jaxnet-") as folder:
        members = _Processes(ranks, processes, processes if min_processes is None else min_processes)
        return Restarting(members, Path(folder), grace_seconds, max_restarts).run()


class _Processes:
    """Those of an attempt: one less when the same one fails every time, or when they cannot share the batch."""

    def __init__(self, ranks: Callable[[int], Sequence[Rank]], processes: int, fewest: int) -> None:
        self._ranks, self._processes, self._fewest = ranks, processes, fewest
        self._started_with = processes

    def gather(self, attempt: int) -> Sequence[Rank]:
        return self._ranks(self._processes)

    def without(self, failed: Ended, *, always: bool, began: bool) -> str | None:
        unfit = self._processes < self._started_with and not began
        if self._processes <= self._fewest or not (always or unfit):
            return None
        self._processes -= 1
        return f"{self._processes} processes"

    def await_more(self, over: threading.Event) -> str:
        return ""


def find_command(command: Sequence[str]) -> list[str]:
    """What to execute: a Python file runs with this interpreter; a program must be on the PATH."""
    if not command:
        raise InputError("no command to launch; give it after --, as in -- train.py --config configs/digits.py")
    program, *arguments = command
    if program.endswith(".py"):
        if not Path(program).is_file():
            raise InputError(f"no such file: {program} (looked for from {Path.cwd()})")
        return [sys.executable, program, *arguments]
    found = shutil.which(program)
    if found is None:
        raise InputError(f"no such program: {program}; give a Python file or a program on the PATH")
    return [found, *arguments]


def rank_environment(
    environ: Mapping[str, str], index: int, processes: int, port: int, devices: int | None
) -> dict[str, str]:
    """The environment of process `index`: `environ`, its place, and output that is not held back."""
    own = {name: value for name, value in environ.items() if name != BIND}
    own |= {
        COORDINATOR: f"127.0.0.1:{port}",
        COUNT: str(processes),
        INDEX: str(index),
        "PYTHONUNBUFFERED": "1",
    }
    if devices is not None:
        own["JAX_NUM_CPU_DEVICES"] = str(devices)
        own.setdefault("JAX_PLATFORMS", "cpu")  # else a machine with an accelerator would not use them
    return own


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
