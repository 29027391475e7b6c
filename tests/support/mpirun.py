"""Ranks that mpirun starts on loopback: a program, or a function of a test module; killed with the whole session."""

import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from support.programs import ROOT, Program

PATIENCE = 240.0
_LOOPBACK = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo"
# A rank that waits would else take a whole core from the one that it waits for.
_PATIENT = "--mca mpi_yield_when_idle 1"
_MPIRUN = f"mpirun --oversubscribe --allow-run-as-root --bind-to none {_PATIENT} {_LOOPBACK}".split()


def missing():
    """Why MPI cannot be tested here, or None. Looks without importing: that would start MPI in this process."""
    if shutil.which("mpirun") is None:
        return "no mpirun on the PATH (Debian: apt-get install libopenmpi-dev openmpi-bin)"
    if importlib.util.find_spec("mpi4jax") is None:
        return "mpi4jax is not installed (make install-mpi)"
    return None


class MpiProgram(Program):
    """`python -m mpi4py ...` on every rank; `others` is what further ranks run, a list of arguments for each."""

    def __init__(self, ranks, *arguments, options=(), others=(), devices=1, **environment):
        # Under `-m mpi4py` an error on one rank ends all, where MPI_Finalize would wait for the others.
        python = [sys.executable, "-m", "mpi4py"]
        command = [*_MPIRUN, *options, "-n", str(ranks), *python, *arguments]
        for more in others:
            command += [":", "-n", "1", *python, *more]
        super().__init__(
            command, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", JAX_NUM_CPU_DEVICES=str(devices), **environment
        )

    def processes(self):
        """Every process of the session; mpirun gives each rank a process group of its own."""
        return list(_session(self.pid))

    def __exit__(self, *error):
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().__exit__(*error)

    def status(self):
        status = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def rank(self, index):
        """The process of a rank."""
        wanted = f"OMPI_COMM_WORLD_RANK={index}".encode()
        (pid,) = (pid for pid in self.processes() if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        return pid


class MpiRun(MpiProgram):
    """`function(*arguments)` of a test module on every rank; `arguments` are strings, what it returns is JSON."""

    def __init__(self, function, ranks, *arguments, devices=1, **environment):
        module = Path(function.__code__.co_filename).relative_to(ROOT / "tests").with_suffix("")
        program = ["-m", "support.mpirun", f"{module}:{function.__name__}", *arguments]
        super().__init__(ranks, *program, devices=devices, **environment)

    def results(self):
        """What the function returned, by rank; every rank must have ended well."""
        assert self.status() == 0, "\n".join([*self.out, *self.err])
        return json.loads(self.out[-1])


def _session(leader):
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                yield int(entry.parent.name)


def main(target, *arguments):
    from mpi4py import MPI

    module, function = target.split(":")
    result = getattr(importlib.import_module(module.replace("/", ".")), function)(*arguments)
    results = MPI.COMM_WORLD.gather(result)
    if results is not None:
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
