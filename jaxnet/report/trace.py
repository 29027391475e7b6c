"""Finding and reading the traces that the JAX profiler wrote, one for each process."""

import re
import warnings
from pathlib import Path
from typing import NamedTuple

from jax.profiler import ProfileData

from jaxnet.errors import InputError
from jaxnet.report.events import Event, read_events
from jaxnet.report.program import Program, read_program
from jaxnet.report.xspace import about

_HOW = "make one with profile.steps=3 of train.py, or with jax.profiler.trace(DIRECTORY)"
_SUFFIX = ".xplane.pb"


class Trace(NamedTuple):
    """What one process traced.

    Attributes:
        process: its number.
        programs: by `name(program id)`.
        events: of all programs.
        steps: numbers given by `jax.profiler.StepTraceAnnotation`, in order of time; empty if it was not used.
    """

    process: int
    programs: dict[str, Program]
    events: list[Event]
    steps: list[int]


def read_traces(path: Path) -> list[Trace]:
    """Read the newest trace of each process.

    Args:
        path: a run's workdir, a directory given to `jax.profiler.trace`, or one `.xplane.pb` file.

    Raises:
        InputError: there is no trace, or it cannot be read.
    """
    return [_read(file, process) for process, file in sorted(_files(path).items())]


def _files(path: Path) -> dict[int, Path]:
    """The trace of each process, by its number."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory; wanted a workdir, a profile directory or a *{_SUFFIX}")
    if path.is_file():
        if not path.name.endswith(_SUFFIX):
            raise InputError(f"{path}: wanted a trace of the JAX profiler, a file named *{_SUFFIX}")
        return {_process(path, 0): path}
    newest: dict[Path, Path] = {}  # of each directory that was given to the profiler, its last session
    for file in sorted(path.rglob(f"plugins/profile/*/*{_SUFFIX}")):
        newest[file.parents[3]] = file.parent
    files = [file for session in newest.values() for file in sorted(session.glob(f"*{_SUFFIX}"))]
    if not files:
        raise InputError(f"{path}: there is no trace of the JAX profiler here or below; {_HOW}")
    numbered = {_process(file, index): file for index, file in enumerate(files)}
    if len(numbered) < len(files):
        raise InputError(f"{path}: {len(files)} traces of {len(numbered)} processes; give the directory of one run")
    return numbered


def _process(file: Path, default: int) -> int:
    """The process whose directory this is (`process_3`), as train.py names them."""
    numbers = [match[1] for part in file.parts if (match := re.fullmatch(r"process_(\d+)", part))]
    return int(numbers[-1]) if numbers else default


def _read(file: Path, process: int) -> Trace:
    try:
        content = file.read_bytes()
        start, texts = about(content)
        with warnings.catch_warnings():
            # jaxlib's types lack a module name; where warnings are errors, that would abort Python 3.12.
            warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
            events, steps = read_events(ProfileData.from_serialized_xspace(content), start)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file} cannot be read as a trace of the JAX profiler: {error}") from error
    programs = {name: read_program(hlo) for name, hlo in texts.items()}
    return Trace(process, programs, events, steps)
