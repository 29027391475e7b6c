"""Real processes from a notebook: `launch` runs a function on fresh ones, joined over loopback.

    def rank():
        import jax

        return jax.process_index(), jax.device_count()

    jaxnet.notebook.launch(rank, processes=2, devices=1).results    # [(0, 2), (1, 2)]

A notebook's kernel is one process, and its JAX is in use. So the function goes to others, as cloudpickle writes it:

1. What it mentions of the notebook goes along as a copy: functions, classes, numbers, arrays. What it changes of that
   stays there; only what it returns comes back.
2. What it mentions of a module is imported there by name, from the same places as here.
3. Devices, meshes, compiled programs, open files and locks stay where they are: make them in the function. An array
   returned must lie wholly on devices of its process: `jax.device_get`, or `addressable_data(0)`.
"""

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from jaxnet.cluster.job_token import TOKEN, new_token
from jaxnet.errors import InputError, error_text, printable, shown
from jaxnet.files import replace
from jaxnet.operations.keeper import TETHER, Keeper
from jaxnet.operations.launchers.free_port import free_port
from jaxnet.operations.launchers.local import rank_environment
from jaxnet.operations.supervise import ending, kill_group

_MOST_PROCESSES = 64  # each is a Python with JAX: some 200 MB
_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.5  # for a process to say where it hangs
_LAST_LINES = 20


@dataclass(frozen=True)
class Launched:
    """What the processes of a `launch` have left.

    Attributes:
        results: what the function returned, a value a process.
        logs: what each process printed, stdout and stderr.
    """

    results: list[Any]
    logs: list[str] = field(repr=False)


def launch(function: Callable[[], Any], processes: int = 2, devices: int = 1, seconds: float = 300.0) -> Launched:
    """Run `function()` on fresh processes that `jax.distributed` has joined, and wait for all.

    Each process has emulated CPU devices of its own: `jax.process_index()` says which it is, `jax.devices()` has the
    devices of all. `jaxnet.train` and `jaxnet.prepare` run there as they do under `jaxnet launch local`. Whatever
    happens, no process stays: one that fails ends all, as do an interruption of the cell, the end of the kernel, and
    the time limit. A kernel that is killed meanwhile leaves their logs in the directory for temporary files.

    Args:
        function: takes no arguments, or give `functools.partial(function, ...)`. See the module for what goes along.
        processes: how many.
        devices: of each process.
        seconds: from the start until all must have ended.

    Raises:
        InputError: it cannot be sent; or a process failed or was too slow: which, how, and the end of its log.
    """
    _check(function, processes, devices, seconds)
    with tempfile.TemporaryDirectory(prefix="jaxnet-") as name:
        folder = Path(name)
        (folder / "function").write_bytes(_sent(function))
        ranks = _Ranks(folder, processes, devices)
        try:
            ranks.start()
            ranks.wait(seconds)
        finally:
            ranks.end()
        return Launched([_result(folder, index) for index in range(processes)], ranks.logs())


def _check(function: Any, processes: int, devices: int, seconds: float) -> None:
    if not callable(function):
        raise InputError(f"launch: wanted a function, got {shown(function)}")
    for name, value, most in (("processes", processes, _MOST_PROCESSES), ("devices", devices, 1024)):
        if not isinstance(value, int) or not 1 <= value <= most:
            raise InputError(f"launch: {name}={shown(value)}; wanted a whole number from 1 to {most}")
    if not seconds > 0:
        raise InputError(f"launch: seconds={seconds}; wanted more than 0")


def _sent(function: Callable[[], Any]) -> bytes:
    try:
        return cloudpickle.dumps(function)
    except Exception as error:  # an object's own way to be pickled may raise anything
        raise InputError(
            f"launch: {shown(function, 200)} cannot be sent to another process: {error_text(error)}; make in "
            "the function what cannot travel, such as a lock or an open file"
        ) from error


def _result(folder: Path, index: int) -> Any:
    path = folder / f"result-{index}"
    if not path.exists():
        raise InputError(f"launch: process {index} ended before the function did")
    try:
        return pickle.loads(path.read_bytes())
    except Exception as error:
        raise InputError(f"launch: what process {index} returned cannot be read here: {error_text(error)}") from error


class _Ranks:
    """The processes of one launch, each with its log in `folder`."""

    def __init__(self, folder: Path, count: int, devices: int) -> None:
        self._folder, self._count, self._devices = folder, count, devices
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._keeper = Keeper(lambda returncode: None)  # kills all when this process is killed
        self._started = time.monotonic()

    def start(self) -> None:
        shared, port = {**os.environ, TOKEN: new_token()}, free_port()
        for index in range(self._count):
            with (self._folder / f"log-{index}").open("wb") as log:
                process = subprocess.Popen(
                    [*TETHER, "rank", str(self._keeper.pipe), str(os.getpid()), *_program(self._folder, index)],
                    env=rank_environment(shared, index, self._count, port, self._devices),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[self._keeper.pipe],
                    start_new_session=True,  # Ctrl-C in a terminal is for this process alone, which then ends all
                )
            self._running[index] = process
            self._keeper.add(process.pid)

    def wait(self, seconds: float) -> None:
        """Until all have ended well; InputError if one has not."""
        while self._running:
            for index, process in list(self._running.items()):
                if (status := process.poll()) is not None:
                    self._forget(index)
                    if status != 0:
                        raise self._failure(index, ending(status))
            if time.monotonic() - self._started > seconds:
                raise self._too_slow(seconds)
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Kill what still runs, with all that it started."""
        for index, process in list(self._running.items()):
            kill_group(process.pid)
            process.wait()
            self._forget(index)
        self._keeper.close()

    def logs(self) -> list[str]:
        """What each has printed."""
        return [(self._folder / f"log-{index}").read_text(errors="replace") for index in range(self._count)]

    def _forget(self, index: int) -> None:
        group = self._running.pop(index).pid
        kill_group(group)  # what it has started and left behind
        self._keeper.forget(group)  # the kernel may give the number to a new process

    def _too_slow(self, seconds: float) -> InputError:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGUSR1)  # it writes where each of its threads is
        time.sleep(_LOOK_SECONDS)
        slow = list(self._running)
        names = "process" if len(slow) == 1 else "processes"
        numbers = " and ".join(map(str, slow))
        return self._with_log(
            slow[0],
            f"launch: {names} {numbers} of {self._count} had not ended after seconds={seconds:g}; killed all",
        )

    def _failure(self, index: int, how: str) -> InputError:
        lines = self.logs()[index].split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return self._with_log(index, f"launch: process {index} of {self._count} {how}: {last}")

    def _with_log(self, index: int, message: str) -> InputError:
        """The error, under which Python and notebooks show the last lines of the log."""
        error = InputError(message)
        lines = self.logs()[index].rstrip().split("\n")[-_LAST_LINES:]
        error.add_note("\n".join((f"The log of process {index} ends:", *(printable(line) for line in lines))))
        return error


def _program(folder: Path, index: int) -> Sequence[str]:
    """Python code: modules are found there where they are found here, that of this function too."""
    call = f"from jaxnet.notebook import main; main({str(folder)!r}, {index})"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {call}"]


# ---- In each process ------------------------------------------------------------------------------------


def main(folder: str, index: int) -> None:
    """Join the other processes, run the function, and leave what it returns. Ends this process."""
    faulthandler.register(signal.SIGUSR1)
    from jaxnet.cluster.start import leave, start

    status = 1
    try:
        start()
        # Only now: it may hold arrays, which are put on devices.
        function = pickle.loads((Path(folder) / "function").read_bytes())
        replace(Path(folder) / f"result-{index}", _packed(function()), flush=False)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
    leave(status)


def _packed(result: Any) -> bytes:
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise InputError(f"what the function returned cannot be sent back: {error_text(error)}") from error
