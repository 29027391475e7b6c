"""What a run leaves behind: config.json, metrics.jsonl, TensorBoard files, summary.json. Process 0 writes."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxnet.errors import InputError


def make_workdir(workdir: Path) -> None:
    """Make the directory of a run, or raise an InputError that says what is in the way."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"workdir {workdir} cannot be made: {error.strerror}; give another with --workdir") from error
    if not os.access(workdir, os.W_OK | os.X_OK):
        raise InputError(f"workdir {workdir} cannot be written to; give another with --workdir")


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either the old one or the new one, whatever happens on the way."""
    scratch = path.with_name(path.name + ".tmp")
    with _writing(path):
        scratch.write_text(text)
        scratch.replace(path)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; mend that, or use another --workdir") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The config that a run has written, as `config_file.flatten` gives it."""
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
    """Appends metrics to metrics.jsonl, and to TensorBoard if wanted.

    A step that a resume runs again is written again; the later line is the one that counts.
    """

    def __init__(self, workdir: Path, *, tensorboard: bool) -> None:
        self._path = workdir / "metrics.jsonl"
        with _writing(self._path):
            self._file = self._path.open("a", buffering=1)
        try:
            self._board = _board(workdir / "tensorboard") if tensorboard else None
        except InputError:
            self._file.close()
            raise

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """One line: step, split, then `values`; the numbers among them also go to TensorBoard as `split/name`."""
        with _writing(self._path):
            self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Flush and close."""
        with _writing(self._path):
            self._file.close()
        if self._board is not None:
            self._board.close()


def _board(directory: Path) -> Any:
    from tensorboardX import SummaryWriter  # takes a while to import

    with _writing(directory):
        return SummaryWriter(str(directory), flush_secs=10)


class NoRecords:
    """The records of a process that writes none."""

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
