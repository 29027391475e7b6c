"""The profiler's trace of a few steps of each strategy, which `jaxnet timeline` reads and draws."""

import re
from collections.abc import Mapping
from pathlib import Path

import jax

from jaxnet.cost.processes import wait_for_all
from jaxnet.cost.steps import Task
from jaxnet.errors import InputError

_STEPS = 3  # one of them is shown: that of median length


def check_trace(directory: Path) -> None:
    """Refuse, before anything is measured, a directory that cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--trace {directory}: cannot be made a directory: {error.strerror}") from None


def trace_directory(directory: Path, label: str) -> Path:
    """Where the trace of a strategy lies, under a name that no tool takes for a remote path or a pattern.

    >>> trace_directory(Path("traces"), "ddp:4MiB+pieces").as_posix()
    'traces/ddp_4MiB+pieces'
    """
    return directory / re.sub(r"[^\w.+-]", "_", label)


def trace_steps(tasks: Mapping[str, Task], directory: Path) -> None:
    """Trace each task, by label, into its own directory; every process calls it with tasks of the same labels.

    Tasks have run before, so that the trace holds no first calls. Python's own calls are left out: they cost time.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    for label, task in tasks.items():
        into = trace_directory(directory, label) / f"process_{jax.process_index()}"
        with jax.profiler.trace(str(into), profiler_options=options):
            wait_for_all()
            task.run(_STEPS)
