"""Programs started as a user starts them: in a clean environment, read line by line, never left behind."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # how long a condition may take before a test gives up on it
_CLUSTER = ("JAX", "SLURM", "OMPI", "XLA", "TPU", "KUBERNETES")


def clean_environment(**extra):
    """This process's environment without anything that describes a cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLUSTER)}
    quick = os.environ["XLA_FLAGS"]  # of conftest.py: half of a short run would be LLVM's
    here = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "error"}
    less = {"XLA_FLAGS": quick, "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}  # as in conftest.py
    return kept | here | less | extra


def write_program(folder, text, name="program.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


class Program:
    """A running program; `out` and `err` are the lines so far; killed with its whole session on leaving."""

    def __init__(self, command, **environment):
        self.process = subprocess.Popen(
            command,
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.out, self.err = [], []
        self._arrived = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.decode().removesuffix("\n"))
            self._arrived.put(None)
        self._arrived.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()

    def wait_for(self, *starts):
        """The first line, of either stream, that begins with each of `starts`, once all have come."""
        deadline = time.monotonic() + PATIENCE
        while True:
            lines = [*self.out, *self.err]
            found = [next((line for line in lines if line.startswith(start)), None) for start in starts]
            if None not in found:
                return found
            if time.monotonic() > deadline or not any(reader.is_alive() for reader in self._readers):
                raise AssertionError(f"waited for {starts}, got {self.out} and {self.err}")
            try:
                self._arrived.get(timeout=1)
            except queue.Empty:
                continue

    def finish(self):
        """Wait for the end; the exit status."""
        status = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status


def jaxnet(*arguments, **environment):
    """`python -m jaxnet ...`, started."""
    return Program([sys.executable, "-m", "jaxnet", *arguments], **environment)


def launch(program, *arguments, processes=2, options=(), **environment):
    """`jaxnet launch local`, started."""
    return jaxnet("launch", "local", "--processes", str(processes), *options, "--", program, *arguments, **environment)


def keeper_of(pid):
    """The process that kills all ranks when the launcher `pid` dies."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (keeper,) = (int(child) for child in children if Path(f"/proc/{child}/cmdline").read_bytes().endswith(b"\0keep\0"))
    return keeper


def await_gone(*pids):
    """Wait until none of `pids` runs; one that has ended but is not reaped (a zombie) is gone."""
    deadline = time.monotonic() + PATIENCE
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(0.02)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
