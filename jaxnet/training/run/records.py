"""What a run leaves behind: config.json, metrics.jsonl, TensorBoard files, summary.json. Process 0 writes."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxnet.errors import InputError
from jaxnet.training.run.appended import Appended, cut_half_line
from jaxnet.training.run.board import Board


def make_workdir(workdir: Path) -> None:
    """Make the directory of a run, or raise an InputError that says what is in the way."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"workdir {workdir} cannot be made: {error.strerror}; give another with --workdir") from error
    if not os.access(workdir, os.W_OK | os.X_OK):
        raise InputError(f"workdir {workdir} cannot be written to; give another with --workdir")


def as_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Strict JSON, which has no word for NaN and infinity: null in their place.

    >>> as_json({"loss": float("nan"), "step": 3})
    '{"loss": null, "step": 3}'
    """
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either the old one or the new one, whatever happens on the way."""
    scratch = path.with_name(path.name + ".tmp")
    with writing(path):
        scratch.write_text(text)
        scratch.replace(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A failure of the disk inside is an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; mend that, or use another --workdir") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The config that a run has written, as `settings.keys.flatten` gives it."""
    try:
        settings = json.loads(path.read_text())
        if isinstance(settings, dict):
            return settings
        reason = "it holds no keys"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise InputError(
        f"{path} is damaged: {reason}; --allow-config-change writes it anew and continues with the config given"
    )


class Records:
    """Appends metrics to metrics.jsonl, and to TensorBoard if wanted. Where a disk is full, they are left out.

    A step that a resume runs again is written again; the later line is the one that counts. Before each line `fence` is
    called, which raises if this run may write no more.
    """

    def __init__(self, workdir: Path, *, tensorboard: bool, fence: Callable[[], None] = lambda: None) -> None:
        path, board = workdir / "metrics.jsonl", workdir / "tensorboard"
        with writing(path):
            cut_half_line(path)
            self._lines = Appended(path, fence=fence)
        self._board: Board | None = None
        if tensorboard:
            try:
                with writing(board):
                    self._board = Board(board, fence=fence)
            except InputError:
                self._lines.close()
                raise

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """One line: step, split, then `values`; the numbers among them also go to TensorBoard as `split/name`."""
        self._lines.append((as_json({"step": step, "split": split, **values}) + "\n").encode())
        if self._board is not None:
            self._board.write(step, {f"{split}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        if self._board is not None:
            self._board.close()


class NoRecords:
    """The records of a process that writes none."""

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
