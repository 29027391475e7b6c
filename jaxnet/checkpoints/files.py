"""The directories of a run's checkpoints: how they are named, published, retired and set aside.

One process works here at a time. Every change of state is one rename, so that a kill at any instant leaves
each step either as it was or as it should become.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jax

from jaxnet.errors import InputError

# ---- A pytree as named leaves, so that what is on disk does not depend on the containers of its program


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` in its own order, by path: dict keys, field names and indices joined by '/'.

    >>> named_leaves({'params': {'kernel': 1.0}, 'opt': (2.0, 3.0)})
    {'opt/0': 2.0, 'opt/1': 3.0, 'params/kernel': 1.0}
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_word(entry) for entry in path): leaf for path, leaf in paths}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Named leaves as nested dicts: the one container that every reader of a checkpoint knows.

    >>> nested({'opt/0': 2.0, 'params/kernel': 1.0})
    {'opt': {'0': 2.0}, 'params': {'kernel': 1.0}}
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for word in parents:
            node = node.setdefault(word, {})
        node[last] = leaf
    return tree


def described(leaves: Mapping[str, Any]) -> dict[str, str]:
    """The dtype and the shape of each leaf, as in 'float32[64, 10]'."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def differences(got: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """One phrase for each leaf that two descriptions do not share.

    >>> differences({'a': 'float32[2]', 'b': 'int32[]'}, {'a': 'float32[3]', 'c': 'int32[]'})
    ['a is float32[2], not float32[3]', 'b (int32[]) is not wanted', 'c (int32[]) is absent']
    """
    changed = [f"{n} is {got[n]}, not {wanted[n]}" for n in got if n in wanted and got[n] != wanted[n]]
    surplus = [f"{n} ({got[n]}) is not wanted" for n in got if n not in wanted]
    absent = [f"{n} ({wanted[n]}) is absent" for n in wanted if n not in got]
    return changed + surplus + absent


def _word(entry: Any) -> str:
    # Orbax joins words with '.' and takes {'a.b': x} and {'a': {'b': y}} for the same leaf: one silently
    # replaces the other.
    return quote(jax.tree_util.keystr((entry,), simple=True), safe=" ").replace(".", "%2E") or "%"


# ---- A directory's manifest: what it holds and a digest of every file, so that damage is found and named
#
# Orbax keeps no checksum of what it writes: a flipped bit in a checkpoint restores silently as another number.
# The manifest closes that gap. It is the last file written into a directory, and it seals itself: its text
# follows from its content alone and holds a digest of that content, so that a change of any byte of it shows.


NAME = "manifest.json"
_GONE = (errno.EIO, errno.ESTALE)  # what a failing disk and a file server say of a file that does not come back


class File(NamedTuple):
    """What a file was when the manifest was written."""

    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """`about` is the JSON object that the writer gave; `files` has every file by its relative path."""

    about: dict[str, Any]
    files: dict[str, File]


class DamagedCheckpoint(Exception):
    """A directory is not what its manifest says, or has none; the message names files and faults."""


def write(directory: Path, about: dict[str, Any]) -> None:
    """Digest every file under `directory`, write the manifest, and flush all of it to the disk.

    Call it when nothing else writes there any more, before the directory gets the name that readers trust.
    """
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {path.relative_to(directory).as_posix(): _digest(path, flush=True) for path in paths}
    with (directory / NAME).open("w", encoding="utf-8") as stream:
        stream.write(_render(Manifest(about, files)))
        stream.flush()
        os.fsync(stream.fileno())
    for path in (*directory.rglob("*"), directory):
        if path.is_dir():
            flush_directory(path)


def flush_directory(directory: Path) -> None:
    """Make the names in `directory` (files created, renamed, deleted) survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(directory: Path) -> Manifest:
    """The manifest of `directory`, after every byte of every file that it lists was read and found right.

    Raises Damaged naming the files that are missing, differ in size or digest, or cannot be read because the disk
    fails. A file that the manifest does not list is no damage: nothing in the sealed files refers to it. Raises
    InputError where they cannot be read for another reason, such as a permission, which says nothing about them.
    """
    return _require(directory, lambda path, file: _size_fault(path, file) or _content_fault(path, file))


def skim(directory: Path) -> Manifest:
    """As `check`, by the sizes of the files alone: microseconds a file, blind to a flipped bit."""
    return _require(directory, _size_fault)


def _require(directory: Path, fault: Callable[[Path, File], str]) -> Manifest:
    manifest = _read(directory)
    found = ((name, _found(directory / name, file, fault)) for name, file in manifest.files.items())
    faults = [f"{name} {what}" for name, what in found if what]
    if faults:
        raise DamagedCheckpoint(
            "; ".join(faults[:3]) + (f"; and {len(faults) - 3} files more" if len(faults) > 3 else "")
        )
    return manifest


def _read(directory: Path) -> Manifest:
    path = directory / NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{NAME} {_unreadable(path, error)}") from error
    try:
        content = json.loads(raw)
        files = {name: File(**entry) for name, entry in content["files"].items()}
        manifest = Manifest(content["about"], files)
        intact = _render(manifest).encode() == raw
    except (ValueError, LookupError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise DamagedCheckpoint(f"{NAME} is not as it was written")
    return manifest


def _render(manifest: Manifest) -> str:
    content = {
        "about": manifest.about,
        "files": {name: file._asdict() for name, file in manifest.files.items()},
    }
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": seal}, indent=1) + "\n"


def _found(path: Path, file: File, fault: Callable[[Path, File], str]) -> str:
    try:
        return fault(path, file)
    except OSError as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> str:
    """The fault of a file that cannot be read; InputError if that is for a reason which says nothing about the file."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if error.errno in _GONE:
        return f"cannot be read: {error.strerror}"
    raise InputError(f"{path} cannot be read: {error.strerror}; mend that, or move the checkpoint away") from error


def _size_fault(path: Path, file: File) -> str:
    size = path.stat().st_size
    return "" if size == file.bytes else f"has {size} bytes, {file.bytes} were written"


def _content_fault(path: Path, file: File) -> str:
    return "" if _digest(path).sha256 == file.sha256 else "is not as it was written (its SHA-256 differs)"


def _digest(path: Path, *, flush: bool = False) -> File:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if flush:
            os.fsync(stream.fileno())
        return File(stream.tell(), digest)


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
        flush_directory(self.root)

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
            about = check(self.path(step)).about
        except DamagedCheckpoint as damage:
            return Survey(None, {}, [(step, str(damage))])
        if about["step"] != step:
            return Survey(None, {}, [(step, f"{NAME} is that of step {about['step']}")])
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
            with contextlib.suppress(DamagedCheckpoint, InputError):
                found[step] = skim(self.path(step)).about
        return found


def _best_steps(whole: Mapping[int, Mapping[str, Any]], best: Best) -> set[int]:
    """The step with the best value, the newest of equals; none where no step has a value."""
    sign = 1 if best.mode == "max" else -1
    values = {step: about["metrics"].get(best.metric, math.nan) for step, about in whole.items()}
    ranked = {step: (sign * value, step) for step, value in values.items() if not math.isnan(value)}
    return {max(ranked, key=lambda step: ranked[step])} if ranked else set()
