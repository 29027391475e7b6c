"""The checkpoints of a run in object storage: each is there once its manifest is, which is written last.

    checkpoints/000200/state/...        the files, in any order
    checkpoints/000200/manifest.json    then this: what is in them, and the digest of each

No reader looks at a step without a manifest: an upload that a kill has cut off, or a deletion, which begins with the
manifest. Whether the bytes are those that were written is checked after they have been fetched, as on a disk.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.checkpoints.manifest import NAME
from jaxnet.files import read_bounded
from jaxnet.object_storage.store import Store

STEPS = "checkpoints"
Fence = Callable[[], None]
Moved = Callable[[], None]


def stored_steps(store: Store) -> dict[int, str]:
    """The complete steps in ascending order, each with the digest of its manifest, which has those of its files."""
    steps = sorted(step for step, names in _objects(store).items() if NAME in names)
    found = {}
    for step in steps:
        try:
            found[step] = _seal(store.read(f"{_step(step)}/{NAME}"))
        except FileNotFoundError:  # deleted just now, by the run itself
            continue
    return found


def local_seal(directory: Path) -> str:
    """The digest of a local step's manifest; "" if it has none, as while it is deleted."""
    try:
        return _seal(read_bounded(directory / NAME))
    except OSError:
        return ""


def send_step(store: Store, directory: Path, step: int, fence: Fence, moved: Moved) -> None:
    """Make the local checkpoint in `directory` one of the store.

    The fence is called before each file: a run that was taken over must not write between the files of the next one.
    """
    fence()
    delete_step(store, step)  # what an upload has left that was cut off
    manifest = directory / NAME
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path != manifest]
    for path in [*files, manifest]:
        fence()
        store.send(path, f"{_step(step)}/{path.relative_to(directory).as_posix()}", moved)


def fetch_step(store: Store, step: int, seal: str, root: Path, wanted: Callable[[], None] = lambda: None) -> None:
    """Make a step of the store, with that digest, one of the local checkpoints in `root`; unchecked.

    One that is there already is not fetched again. `wanted` is called before each file, and may raise.
    """
    files = CheckpointFiles(root)
    there = files.path(step)
    if os.path.lexists(there):
        if local_seal(there) == seal:
            return
        _delete(there)
    root.mkdir(parents=True, exist_ok=True)
    staged = files.staging(step, "fetched")
    files.stage(staged)
    for name in store.names(_step(step)):
        wanted()
        store.fetch(f"{_step(step)}/{name}", staged / name)
    files.publish(staged, step)


def forget_others(root: Path, steps: Iterable[int]) -> None:
    """Delete what an earlier call has fetched to `root`, but for these steps."""
    kept = {CheckpointFiles(root).path(step) for step in steps}
    for path in root.glob("*"):
        if path not in kept:
            _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def delete_step(store: Store, step: int) -> None:
    """Delete a step, or what is there of one: the manifest first, without which it is none."""
    names = store.names(_step(step))
    store.delete(f"{_step(step)}/{name}" for name in sorted(names, key=lambda name: name != NAME))


def retire(store: Store, kept: list[int], fence: Fence) -> None:
    """Delete the steps that are not `kept`, while as many newer ones as those are complete in the store."""
    objects = _objects(store)
    complete = sorted(step for step, names in objects.items() if NAME in names)
    enough = complete[-len(kept) :] if kept else complete
    for step in objects:
        if step not in kept and step not in enough:
            fence()
            delete_step(store, step)


def _objects(store: Store) -> dict[int, list[str]]:
    """The names of the objects of each step, below it."""
    found: dict[int, list[str]] = {}
    for name in store.names(STEPS):
        step, _, below = name.partition("/")
        if step.isdecimal() and f"{int(step):06d}" == step:
            found.setdefault(int(step), []).append(below)
    return found


def _step(step: int) -> str:
    return f"{STEPS}/{step:06d}"


def _seal(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()
