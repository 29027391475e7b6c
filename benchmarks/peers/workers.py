"""Workers of two frameworks that time a round of a variant when they are asked, and what they are started with."""

import argparse
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxnet.cluster.huge_pages import VARIABLE, wanted
from jaxnet.errors import InputError

PEERS = Path(__file__).resolve().parent
_TORCH_PYTHON = ".venv-torch/bin/python"


class Worker:
    """A process that times a round of one variant when asked; killed on leaving, or when it is late.

    Args:
        name: for messages.
        command: that starts it.
        environment: variables besides those of this process.
        limit: seconds until an answer; None: it may take its time. A worker that is late, or that ends although it has
            a limit, is lost: it answers no more.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = MappingProxyType({}),
        limit: float | None = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.lost = False
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()  # it is warm

    def milliseconds(self, variant: str, steps: int) -> float:
        """Of a step; infinite if the worker is lost."""
        if self.lost:
            return math.inf
        assert self.process.stdin is not None
        try:
            print(variant, steps, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            self._ended()
        return float(self._answer().get("ms", math.inf))

    def _answer(self) -> dict[str, Any]:
        """Its next line of JSON; libraries print other lines too."""
        assert self.process.stdout is not None
        timer = threading.Timer(self.limit or threading.TIMEOUT_MAX, self._lose)
        timer.daemon = True
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
                print(line, end="", file=sys.stderr)
        finally:
            timer.cancel()
        # Of two that wait for each other the one that is ended first takes the other's connection with it.
        self.lost = self.lost or self.limit is not None
        return {} if self.lost else self._ended()

    def _lose(self) -> None:
        self.lost = True
        self.process.kill()

    def _ended(self) -> Any:
        raise InputError(f"the worker of {self.name} ended with status {self.process.wait()}; see its message above")

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def worker_command(script: str, framework: str, torch_python: str) -> list[str]:
    """Begins the command of SCRIPT_jax.py or SCRIPT_torch.py, each in its own Python."""
    return [sys.executable if framework == "jax" else torch_python, str(PEERS / f"{script}_{framework}.py")]


def huge_pages() -> dict[str, str]:
    """The variable by which `jaxnet` starts itself with its memory in huge pages; none where it does not."""
    value = wanted(os.environ)
    return {} if value is None else {VARIABLE: value}


# ---- Options of the benchmarks --------------------------------------------------------------------------------


def add_torch_python(parser: argparse.ArgumentParser) -> None:
    """Which Python has PyTorch."""
    parser.add_argument("--torch-python", metavar="PYTHON", help=f"one with PyTorch; default {_TORCH_PYTHON}")


def find_torch_python(named: str | None) -> str:
    """The Python that has PyTorch; InputError: there is no such file."""
    path = named or _TORCH_PYTHON
    if not Path(path).is_file():
        raise InputError(
            f"no Python at {path}: make it with benchmarks/peers/environment.sh, or name one by --torch-python"
        )
    return path


def add_cores(parser: argparse.ArgumentParser) -> None:
    """How many cores each worker has."""
    here = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--cores", type=int, choices=range(1, here + 1), default=here, metavar="N", help="default: all of this process"
    )


def keep_to_cores(count: int) -> None:
    """From here on this process, and the workers that it starts, have the first so many of its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
