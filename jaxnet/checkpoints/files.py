"""The directories of a run's checkpoints: how they are staged, published, retired and set aside.

    000200/                  a published checkpoint: complete, sealed by its manifest
    000300-NAME-1.saving/    one that is being written, or that a kill left behind
    000100.deleting/         one that is being deleted, or that a kill left behind
    damaged/000300-1/        one that differs from its manifest: kept, never read

One process works here at a time. Every change of state is one rename, which a file system does whole or not at all:

1. `stage` makes `.saving` and the arrays and the manifest are written there. A kill leaves a directory that no reader
   looks at; the next `stage` deletes it.
2. `publish` renames it to the step. Before the rename the step does not exist; after it, it is complete.
3. `retire` renames an old step to `.deleting`, then deletes it. A kill in between leaves a directory that no reader
   looks at, never a step with some of its files.
"""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.checkpoints import manifest
from jaxnet.checkpoints.manifest import DamagedCheckpoint, Manifest, flush_directory
from jaxnet.errors import InputError
from jaxnet.files import record_of

_SAVING = ".saving"
_DELETING = ".deleting"
_DAMAGED = "damaged"
_TRIES, _AWAY = 40, 6  # looks at a directory, 0.05 s apart, and how many in a row must not find it


class Survey(NamedTuple):
    """The result of looking for an intact step.

    Attributes:
        step: the step whose files match its manifest; None if there is none.
        about: what its manifest says.
        damaged: the damaged steps that were met first, each with its faults.
    """

    step: int | None
    about: dict[str, Any]
    damaged: list[tuple[int, str]]


class CheckpointFiles:
    """The step directories under one root."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, step: int) -> Path:
        """Return where the published checkpoint of `step` is."""
        return self.root / f"{step:06d}"

    def staging(self, step: int, attempt: str) -> Path:
        """Return where a checkpoint of `step` is written; nothing reads it there.

        Each attempt has its own directory: after a failure a storage thread may go on writing for a while, and so
        may a run that another run has replaced.
        """
        return self.root / f"{step:06d}-{attempt}{_SAVING}"

    def steps(self) -> list[int]:
        """Return the published steps in ascending order; InputError if they cannot be listed."""
        try:
            return self.listed()
        except OSError as error:
            raise InputError(
                f"the checkpoints in {self.root} cannot be listed: {error.strerror}; make that a directory that this "
                "user can read"
            ) from error

    def listed(self) -> list[int]:
        """Return the published steps, as `steps` does; OSError if they cannot be listed.

        By their names alone: what cannot be read, or is no directory, is a step that is damaged.
        """
        names = os.listdir(self.root)  # noqa: PTH208  # iterdir may fail only after the first names
        return sorted(int(name) for name in names if name.isdecimal() and name == self.path(int(name)).name)

    def sweep(self) -> None:
        """Delete, as far as possible now, what a kill left half written or half deleted; nothing reads it."""
        for path in self.root.iterdir():
            if path.suffix in (_SAVING, _DELETING):
                shutil.rmtree(path, ignore_errors=True)

    def stage(self, staged: Path) -> None:
        """Make the directory `staged`, after deleting what earlier attempts left."""
        self.sweep()
        staged.mkdir()

    def discard(self, staged: Path) -> None:
        """Delete what a failed save wrote, as far as possible.

        When one part of a write has failed, others may go on and make the directory anew: it must stay away.
        """
        away = 0
        for _ in range(_TRIES):
            away = away + 1 if not staged.exists() else 0
            if away == _AWAY:
                return
            shutil.rmtree(staged, ignore_errors=True)
            time.sleep(0.05)

    def publish(self, staged: Path, step: int) -> None:
        """Rename the staged and sealed directory to `step`; from then on it is a checkpoint. OSError: it is none."""
        staged.rename(self.path(step))
        try:
            flush_directory(self.root)
        except OSError:
            with contextlib.suppress(OSError):
                self.path(step).rename(staged)
            raise

    def retire(self, keep: int, best: int | None) -> None:
        """Delete the steps that are neither among the newest `keep` nor `best`.

        Only steps with a manifest and all their files at full length count, and only they are deleted. A damaged
        or unreadable step does not take the place of a good one, and does not disappear.
        """
        complete = self._complete()
        for step in complete.keys() - {*sorted(complete)[-keep:], best}:
            doomed = self.root / f"{step:06d}{_DELETING}"
            self.path(step).rename(doomed)
            shutil.rmtree(doomed)

    def survey(self, up_to: int | None = None) -> Survey:
        """Check every byte of the steps, from the newest (or `up_to`) backwards, until one is intact."""
        damaged: list[tuple[int, str]] = []
        for step in (step for step in reversed(self.steps()) if up_to is None or step <= up_to):
            found = self.examine(step)
            if found.step is not None:
                return found._replace(damaged=damaged)
            damaged += found.damaged
        return Survey(None, {}, damaged)

    def examine(self, step: int) -> Survey:
        """Check every byte of one step. An absent step is neither intact nor damaged.

        Raises InputError, as `survey` does, where this user may not read it.
        """
        if step not in self.steps():
            return Survey(None, {}, [])
        try:
            about = _of_step(step, manifest.check(self.path(step)))
        except DamagedCheckpoint as damage:
            return Survey(None, {}, [(step, str(damage))])
        return Survey(step, about, [])

    def best_step(self) -> int | None:
        """Return which step was the best when the newest was saved, which is by file sizes alone complete."""
        complete = self._complete()
        if not complete:
            return None
        about = complete[max(complete)]
        if "best" in about:
            return about["best"]
        # An older version said it in what the trainer saves for itself.
        step = about["extra"].get("best_evaluation", {}).get("step", -1)
        return None if step == -1 else step

    def set_aside(self, step: int) -> Path:
        """Move a damaged step into `damaged/`, where it is kept but never read, so that it can be saved again."""
        shelf = self.root / _DAMAGED
        shelf.mkdir(exist_ok=True)
        places = (shelf / f"{step:06d}-{number}" for number in itertools.count(1))
        place = next(place for place in places if not os.path.lexists(place))
        with contextlib.suppress(FileNotFoundError):  # another process that reads the same run was faster
            self.path(step).rename(place)
        return place

    def _complete(self) -> dict[int, Mapping[str, Any]]:
        """Return what the manifest says of each step whose files all have their full length."""
        found: dict[int, Mapping[str, Any]] = {}
        for step in self.listed():
            with contextlib.suppress(DamagedCheckpoint, InputError):
                found[step] = _of_step(step, manifest.skim(self.path(step)))
        return found


class _About(NamedTuple):
    """What a manifest says of a step."""

    step: int
    extra: dict[str, Any]
    leaves: dict[str, str]
    best: int | None = None


def _of_step(step: int, found: Manifest) -> dict[str, Any]:
    """Return what a manifest says, if it is that of a step of ours, and of this one; else DamagedCheckpoint."""
    try:
        about = record_of(_About, {name: found.about[name] for name in _About._fields if name in found.about})
    except ValueError as error:
        raise DamagedCheckpoint(f"{manifest.NAME} is no run's: {error}") from error
    if about.step != step:
        raise DamagedCheckpoint(f"{manifest.NAME} is that of step {about.step}")
    return found.about
