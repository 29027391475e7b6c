"""Real processes that talk over loopback, each running a function of a test module with JAX started in it."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxnet.operations.launchers.free_port import free_port

TESTS = Path(__file__).parents[1]


class Ranks:
    """Processes that each call `function(rank, *arguments)` of the test module `module`; killed on leaving.

    `arguments` are strings. What a function returns (JSON) is what `results` gives.
    """

    def __init__(self, function, count, *arguments, devices=2):
        target = f"{Path(function.__code__.co_filename).relative_to(TESTS).with_suffix('')}:{function.__name__}"
        port = free_port()
        self._errors = [tempfile.TemporaryFile("w+") for _ in range(count)]  # noqa: SIM115 (closed on exit)
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "support.ranks",
                    target,
                    *map(str, (rank, count, port, devices)),
                    *arguments,
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
                    "JAX_PLATFORMS": "cpu",
                    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # as in conftest.py
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for rank, errors in enumerate(self._errors)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, errors in zip(self.processes, self._errors, strict=True):
            process.kill()
            process.wait()
            process.stdout.close()
            errors.close()

    def line(self, rank, word):
        """Waits for the next line that the process prints and that begins with `word`."""
        for line in self.processes[rank].stdout:
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"rank {rank} ended without printing {word!r}: {self.errors(rank)}")

    def errors(self, rank):
        self._errors[rank].seek(0)
        return self._errors[rank].read()

    def results(self, timeout=120):
        """What the function returned on each rank; every process must have ended well."""
        outputs = [process.communicate(timeout=timeout)[0] for process in self.processes]
        for rank, process in enumerate(self.processes):
            assert process.returncode == 0, f"rank {rank}: {process.returncode}\n{self.errors(rank)}"
        return [json.loads(output.splitlines()[-1]) for output in outputs]


def main(target, rank, count, port, devices, *arguments):
    import jax

    jax.config.update("jax_num_cpu_devices", int(devices))
    if int(count) > 1:
        from jaxnet.cluster.start import make_gloo

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(rank))
        make_gloo(hostname="127.0.0.1")
    module, function = target.split(":")
    result = getattr(importlib.import_module(module.replace("/", ".")), function)(int(rank), *arguments)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
