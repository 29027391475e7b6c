"""How far each rank has come, in a small file that its launcher reads. They share nothing else.

Times are on the clock `time.monotonic`, which all processes of a host share.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

PROGRESS = "JAXNET_PROGRESS_FILE"
"""The variable that names a rank's file; a launcher that restarts sets it."""


class Progress(NamedTuple):
    """How far a rank came in one attempt.

    Attributes:
        first: the number of the first step that it did.
        began: when that step was done.
        step: the number of the last step that it did.
    """

    first: int
    began: float
    step: int


def noted(environ: Mapping[str, str]) -> Callable[[int], None]:
    """A function that takes the number of each finished step and writes it to the launcher's file.

    It costs a few microseconds. It does nothing where no launcher has named a file, or the file cannot be written.
    """
    if not (path := environ.get(PROGRESS)):
        return lambda step: None
    return _Writer(Path(path)).note


class _Writer:
    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        self._path = path
        self._began = ""

    def note(self, step: int) -> None:
        with contextlib.suppress(OSError):  # the run is worth more than its progress file
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._began = f"{step} {time.monotonic()!r}"
            os.pwrite(self._file, f"{self._began} {step}\n".encode(), 0)


def read_progress(path: Path) -> Progress | None:
    """What a rank has written; None if it has done no step yet."""
    try:
        first, began, step = path.read_text().splitlines()[0].split()
    except (FileNotFoundError, IndexError, ValueError):
        return None
    return Progress(int(first), float(began), int(step))


def furthest(found: list[Progress | None]) -> Progress | None:
    """The progress of a job from that of its ranks: a first step is done when the last rank has done it."""
    there = [each for each in found if each is not None]
    if not there:
        return None
    return Progress(
        max(each.first for each in there), max(each.began for each in there), max(each.step for each in there)
    )
