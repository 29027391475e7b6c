"""Read checkpoints: find an intact step, and turn its arrays into the state or the parameters that a program wants.

`find_checkpoint` and `read_leaves` write, move and delete nothing, so they work in a directory that is read-only for
the user of a trained model. `read_state` is the restore of `Checkpointer`.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxnet.checkpoints.files import CheckpointFiles, Survey
from jaxnet.checkpoints.leaves import Replaceable, described, differences_text, filled, leaves_to_read, named_leaves
from jaxnet.errors import InputError
from jaxnet.files import is_directory

_log = logging.getLogger("jaxnet")

# ---- A trained model ------------------------------------------------------------------------------------


class FoundCheckpoint(NamedTuple):
    """A step whose files match its manifest.

    Attributes:
        path: its directory.
        step: its number.
        extra: the `extra` that was given to save.
        leaves: dtype and shape of every leaf by name.
    """

    path: Path
    step: int
    extra: dict[str, Any]
    leaves: dict[str, str]


def steps_at(path: Path) -> tuple[Path, int | None]:
    """Return the directory of the steps, for a workdir, for that directory, or for a step in it, which is the other.

    >>> steps_at(Path("no/such/run"))
    (PosixPath('no/such/run'), None)
    """
    if is_directory(path / "checkpoints"):
        return path / "checkpoints", None
    here = path.absolute()
    if here.name.isdecimal() and is_directory(here / "state"):
        return here.parent, int(here.name)
    return path, None


def find_checkpoint(root: Path, step: int | None = None, *, best: bool = False) -> FoundCheckpoint:
    """Return the newest intact step under `root`, or `step`, or the one that was the best when the newest was saved.

    Every file of the step is digested first. A warning names newer steps that are damaged. Raises InputError when no
    step is intact, and when the one that was asked for is damaged or absent.
    """
    files = CheckpointFiles(root)
    steps = files.steps() if os.path.lexists(root) else []
    if not steps:
        raise InputError(f"there is no checkpoint in {root}: wanted the workdir of a run, or its checkpoints")
    if best:
        step = files.best_step()
        if step is None:
            raise InputError(
                f"no checkpoint in {root} is known as the best, which evaluations on validation examples decide; train "
                "with validation=0.1, or leave out the choice of the best"
            )
    found = files.survey() if step is None else files.examine(step)
    if found.step is None:
        raise InputError(_none_intact(root, step, steps, found))
    for damaged, fault in found.damaged:
        _log.warning("checkpoint step %d is damaged: %s; using step %d", damaged, fault, found.step)
    return FoundCheckpoint(files.path(found.step), found.step, found.about["extra"], found.about["leaves"])


def _none_intact(root: Path, step: int | None, steps: list[int], found: Survey) -> str:
    faults = "; ".join(f"step {damaged}: {fault}" for damaged, fault in found.damaged)
    if step is None:
        return f"no checkpoint in {root} can be used: {faults}"
    others = other_steps(steps, step)
    if faults:
        return f"checkpoint {root} {faults}; other steps there: {others}"
    return f"checkpoint step {step} is not in {root}; steps there: {others}"


def other_steps(steps: list[int], step: int) -> str:
    """Return the steps but `step` as text, 'none' where there are none."""
    return ", ".join(str(other) for other in steps if other != step) or "none"


def read_leaves(found: FoundCheckpoint, like: Mapping[str, Any]) -> dict[str, Any]:
    """Read the leaves that `like` names; InputError if a dtype or shape differs, or one is not there.

    Where `like` has shapes with shardings they become arrays on devices; where it has NumPy arrays, such.
    """
    there = {name: found.leaves[name] for name in like if name in found.leaves}
    if wrong := differences_text(there, described(like)):
        raise InputError(f"{found.path} holds other parameters than this model: {wrong}")
    return _arrays(found.path / "state", like)


# ---- A training state -----------------------------------------------------------------------------------


def read_state(
    directory: Path,
    stored: Mapping[str, str],
    like: Any,
    defaults: Mapping[str, Any],
    replaceable: Replaceable | None,
    extra: Mapping[str, Any],
    *,
    alone: bool = False,
) -> tuple[Any, dict[str, str]]:
    """Read the state in `directory`, whose leaves `stored` describes, in the structure and shardings of `like`.

    See `Checkpointer.restore_latest`. Raises InputError when the leaves differ.

    Returns:
        The state, and the description of the stored leaves that were made anew.
    """
    wanted = named_leaves(like)
    replaced: dict[str, str] = {}
    if replaceable is None or replaceable.fit(stored, described(wanted), extra):
        leaves = _read_wanted(directory, stored, wanted, defaults, alone)
    else:
        replaced, kept = replaceable.split(stored)
        leaves = _read_wanted(directory, kept, replaceable.split(wanted)[1], defaults, alone)
        leaves |= named_leaves(replaceable.make())
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted]), replaced


def _read_wanted(
    directory: Path, stored: Mapping[str, str], wanted: Mapping[str, Any], defaults: Mapping[str, Any], alone: bool
) -> dict[str, Any]:
    asked = leaves_to_read(stored, wanted, defaults)
    if wrong := differences_text(stored, described(asked)):
        raise InputError(
            f"{directory} holds another state than this program trains: {wrong}. "
            "Use the configuration that it was saved with, or another directory"
        )
    made = {name: filled(leaf, defaults[name]) for name, leaf in wanted.items() if name not in asked}
    return made | _arrays(directory / "state", asked, alone=alone)


def _arrays(path: Path, like: Mapping[str, Any], *, alone: bool = False) -> dict[str, Any]:
    from jaxnet.checkpoints.storage import read_arrays  # brings Orbax, which takes a while to import

    return read_arrays(path, like, alone=alone)
