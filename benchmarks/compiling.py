"""Compiling for devices that are not there, each time in a process of its own, and rows of JSON that outlive it."""

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_COMPILERS = ROOT / ".venv-compilers"


def environment() -> dict[str, str]:
    """Variables with which a process finds the compilers of `make compilers`, and this checkout."""
    path = [os.environ.get("PYTHONPATH", ""), str(ROOT), str(_COMPILERS)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "TF_CPP_MIN_LOG_LEVEL": "3"}


def version() -> str:
    """Of JAX."""
    return importlib.metadata.version("jax")


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """How a process failed, in one line."""
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else last.removeprefix("error: ")
    return how[:300]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none where it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_rows(path: Path, cells: Sequence[Any], make: Callable[[Any], dict[str, Any]], jobs: int) -> None:
    """Make a row of each cell, `jobs` at once; each is printed, and in the file, as soon as it is there."""
    with ThreadPoolExecutor(jobs) as pool, path.open("a") as out:
        for made in as_completed([pool.submit(make, cell) for cell in cells]):
            print(json.dumps(made.result()), file=out, flush=True)
            print(json.dumps(made.result()), flush=True)
