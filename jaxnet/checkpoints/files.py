"""The directories of a run's checkpoints: how they are named, published, retired and set aside.

One process works here at a time. Every change of state is one rename, so that a kill at any instant leaves
each step either as it was or as it should become.
"""

import contextlib
import itertools
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.checkpoints import manifest
from jaxnet.errors import InputError

_SAVING = ".saving"
_DELETING = ".deleting"
_DAMAGED = "damaged"


class Best(NamedTuple):
    """Which metric makes a step worth keeping, and whether more of it is better ('max') or less ('min')."""

    metric: str
    mode: str


class Survey(NamedTuple):
    """A step that is whole, with what its manifest says; and newer ones that are not, with what is wrong."""

    step: int | None
    about: dict[str, Any]
    damaged: list[tuple[int, str]]


class CheckpointFiles:
    """The step directories under one root."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, step: int) -> Path:
        """Where a complete checkpoint of `step` is."""
        return self.root / f"{step:06d}"

    def staging(self, step: int, attempt: str) -> Path:
        """Where a checkpoint of `step` is made; it is not read from there.

        Each attempt has its own place, because after a failure a storage thread may write on for a while, as may
        a run that another has replaced.
        """
        return self.root / f"{step:06d}-{attempt}{_SAVING}"

    def steps(self) -> list[int]:
        """The steps that have been published, in ascending order."""
        with os.scandir(self.root) as entries:  # which asks for no more than the names, also where one cannot be read
            names = [entry.name for entry in entries if entry.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal() and name == self.path(int(name)).name)

    def sweep(self) -> None:
        """Delete what was begun and not ended, as far as that is possible now: nothing will read it."""
        for path in self.root.iterdir():
            if path.suffix in (_SAVING, _DELETING):
                shutil.rmtree(path, ignore_errors=True)

    def stage(self, staged: Path) -> None:
        """Make the place where a checkpoint is made, and delete what was left in others."""
        self.sweep()
        staged.mkdir()

    def publish(self, staged: Path, step: int) -> None:
        """Give what was staged and sealed the name of `step`; from then on it is a checkpoint."""
        staged.rename(self.path(step))
        manifest.flush_directory(self.root)

    def retire(self, keep: int, best: Best | None) -> None:
        """Delete the steps that are neither among the newest `keep` nor the best.

        Only steps with a manifest and all their files at full length are counted, and only they are deleted:
        a step that is damaged or cannot be read neither crowds out a good one nor disappears.
        """
        whole = self._whole()
        kept = set(sorted(whole)[-keep:])
        if best is not None:
            kept |= _best_steps(whole, best)
        for step in whole.keys() - kept:
            doomed = self.root / f"{step:06d}{_DELETING}"
            self.path(step).rename(doomed)
            shutil.rmtree(doomed)

    def survey(self, up_to: int | None = None) -> Survey:
        """Read the steps from the newest, or from `up_to`, back, every byte of them, until one is whole."""
        damaged: list[tuple[int, str]] = []
        for step in (step for step in reversed(self.steps()) if up_to is None or step <= up_to):
            found = self.examine(step)
            if found.step is not None:
                return found._replace(damaged=damaged)
            damaged += found.damaged
        return Survey(None, {}, damaged)

    def examine(self, step: int) -> Survey:
        """Read every byte of one step. A step that is absent is neither whole nor damaged.

        Raises InputError, as `survey`, where this user may not read it.
        """
        if step not in self.steps():
            return Survey(None, {}, [])
        try:
            about = manifest.check(self.path(step)).about
        except manifest.Damaged as damage:
            return Survey(None, {}, [(step, str(damage))])
        if about["step"] != step:
            return Survey(None, {}, [(step, f"{manifest.NAME} is that of step {about['step']}")])
        return Survey(step, about, [])

    def best_step(self, best: Best) -> int | None:
        """The step with the best value among those with all their files at full length, if any has a value."""
        return max(_best_steps(self._whole(), best), default=None)

    def set_aside(self, step: int) -> Path:
        """Move a damaged step to where it is kept but never read, so that the step can be saved again."""
        shelf = self.root / _DAMAGED
        shelf.mkdir(exist_ok=True)
        places = (shelf / f"{step:06d}-{number}" for number in itertools.count(1))
        place = next(place for place in places if not place.exists())
        with contextlib.suppress(FileNotFoundError):  # another process, reading the same run, was faster
            self.path(step).rename(place)
        return place

    def _whole(self) -> dict[int, Mapping[str, Any]]:
        found: dict[int, Mapping[str, Any]] = {}
        for step in self.steps():
            with contextlib.suppress(manifest.Damaged, InputError):
                found[step] = manifest.skim(self.path(step)).about
        return found


def _best_steps(whole: Mapping[int, Mapping[str, Any]], best: Best) -> set[int]:
    """The step with the best value, the newest of equals; none where no step has a value."""
    sign = 1 if best.mode == "max" else -1
    values = {step: about["metrics"].get(best.metric, math.nan) for step, about in whole.items()}
    ranked = {step: (sign * value, step) for step, value in values.items() if not math.isnan(value)}
    return {max(ranked, key=lambda step: ranked[step])} if ranked else set()
