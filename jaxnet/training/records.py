"""What a run leaves behind: config.json, metrics.jsonl, TensorBoard files, summary.json. Process 0 writes."""

import json
import os
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
    scratch.write_text(text)
    scratch.replace(path)


class Records:
    """Appends metrics to metrics.jsonl, and to TensorBoard if wanted.

    A step that a resume runs again is written again; the later line is the one that counts.
    """

    def __init__(self, workdir: Path, *, tensorboard: bool) -> None:
        self._file = (workdir / "metrics.jsonl").open("a", buffering=1)
        self._board = None
        if tensorboard:
            from tensorboardX import SummaryWriter  # takes a while to import

            self._board = SummaryWriter(str(workdir / "tensorboard"), flush_secs=10)

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """One line: step, split, then `values`; the numbers among them also go to TensorBoard as `split/name`."""
        self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        if self._board is not None:
            self._board.close()


class NoRecords:
    """The records of a process that writes none."""

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
