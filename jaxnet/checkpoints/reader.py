"""Checkpoints that are only read: whole files of a step are digested first, and nothing is written, moved or deleted.

For whoever uses what was trained, perhaps in a directory that they may not change.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxnet.checkpoints.files import Best, CheckpointFiles, Survey, described, differences
from jaxnet.checkpoints.storage import read_arrays
from jaxnet.errors import InputError

_log = logging.getLogger("jaxnet")


class FoundCheckpoint(NamedTuple):
    """A step whose files are as they were written.

    Attributes:
        path: its directory.
        step: its number.
        extra: as it was given to save.
        leaves: dtype and shape of every leaf by name.
    """

    path: Path
    step: int
    extra: dict[str, Any]
    leaves: dict[str, str]


def find_checkpoint(root: Path, step: int | None = None, best: Best | None = None) -> FoundCheckpoint:
    """The newest step under `root` that is as it was written, or `step`, or the one with the best metric.

    Newer steps that are damaged are named in a warning. Raises InputError when there is none, and when the one that
    was asked for is damaged.
    """
    files = CheckpointFiles(root)
    steps = files.steps() if root.is_dir() else []
    if not steps:
        raise InputError(f"there is no checkpoint in {root}: wanted the workdir of a run, or its checkpoints")
    if best is not None:
        step = files.best_step(best)
        if step is None:
            raise InputError(
                f"no checkpoint in {root} has the metric {best.metric!r}; leave out the choice of the best"
            )
    found = files.survey() if step is None else files.examine(step)
    if found.step is None:
        raise InputError(_nothing_good(root, step, steps, found))
    for damaged, fault in found.damaged:
        _log.warning("checkpoint step %d is damaged: %s; using step %d", damaged, fault, found.step)
    return FoundCheckpoint(files.path(found.step), found.step, found.about["extra"], found.about["leaves"])


def _nothing_good(root: Path, step: int | None, steps: list[int], found: Survey) -> str:
    faults = "; ".join(f"step {damaged}: {fault}" for damaged, fault in found.damaged)
    if step is None:
        return f"no checkpoint in {root} can be used: {faults}"
    if faults:
        return f"checkpoint {root} {faults}; other steps there: {_others(steps, step)}"
    return f"checkpoint step {step} is not in {root}; steps there: {_others(steps, step)}"


def _others(steps: list[int], step: int) -> str:
    return ", ".join(str(other) for other in steps if other != step) or "none"


def read_leaves(found: FoundCheckpoint, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Those leaves alone, where their shardings say; InputError unless they have these dtypes and shapes."""
    there = {name: found.leaves[name] for name in like if name in found.leaves}
    wrong = differences(there, described(like))
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise InputError(f"{found.path} holds other parameters than this model: {'; '.join(wrong[:5])}{more}")
    return read_arrays(found.path / "state", like)
