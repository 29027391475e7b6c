"""How far each rank has come, in a small file that its launcher reads. They share nothing else.

Times are on the clock `time.monotonic`, which all processes of a host share.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from jaxnet.errors import InputError

PROGRESS = "JAXNET_PROGRESS_FILE"
"""The variable that names a rank's file; a launcher that restarts sets it."""

ALIVE = "JAXNET_ALIVE_FILE"
"""The variable that names a file which a run touches about every second, for the probes of Kubernetes."""

STOPPED = "JAXNET_STOPPED_STATUS"
"""The variable with the exit status of a run that a signal has stopped; without it 0."""


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


def sign_of_life(environ: Mapping[str, str]) -> Callable[[], None]:
    """A function that touches the file that ALIVE names, if one is named and can be written."""
    if not (path := environ.get(ALIVE)):
        return lambda: None

    def touch() -> None:
        with contextlib.suppress(OSError):
            Path(path).touch()

    return touch


def stopped_status(environ: Mapping[str, str]) -> int:
    """The exit status of a run that a signal has stopped, as STOPPED says.

    A launcher that starts a job again only if it has failed, such as Kubernetes after an eviction, sets it.

    >>> stopped_status({}), stopped_status({"JAXNET_STOPPED_STATUS": "143"})
    (0, 143)
    """
    text = environ.get(STOPPED) or "0"
    if not (text.isascii() and text.isdigit() and int(text) < 256):
        raise InputError(f"{STOPPED} is {text!r:.60}; it must be a whole number from 0 to 255")
    return int(text)


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
