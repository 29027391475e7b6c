"""What a reader wants of a run in object storage, fetched to this machine. A local run is read where it is."""

import atexit
import functools
import re
import shutil
import tempfile
from pathlib import Path

from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.errors import InputError
from jaxnet.object_storage.steps import STEPS, fetch_step, forget_others, stored_steps
from jaxnet.object_storage.store import Store, StoreFailed, remote_url

_TRIES = 3  # the run goes on meanwhile, and deletes old checkpoints


def fetched_files(workdir: str | Path, *names: str) -> Path:
    """The directory with these files of a run; InputError if one of a run in object storage is not there."""
    url = remote_url(workdir)
    if url is None:
        return Path(workdir)
    place = _place(url)
    for name in names:
        try:
            Store(url).fetch(name, place / name)
        except FileNotFoundError as error:
            raise InputError(f"{url} has no {name}; wanted the workdir of a run") from error
        except OSError as error:
            raise _unreadable(url, error) from error
    return place


def fetched_steps(path: str | Path, step: int | None = None, *, every: bool = False) -> Path:
    """The same place on this machine: a workdir, its checkpoints, or one of them, with the step that is asked for.

    That is `step`, the one that `path` names, or every one; else the newest that is as it was written. Damaged ones
    that are newer lie there too, so that whoever looks for the newest names them. Raises InputError if there is none.
    """
    url = remote_url(path)
    if url is None:
        return Path(path)
    found = re.fullmatch(rf"(.+?)(/{STEPS}(?:/(\d{{6,}}))?)?", url)
    assert found is not None, "any text has this form"
    run, below, named = found.groups()
    if named is not None:
        step = int(named)
    place = _place(run)
    for _ in range(_TRIES):
        try:
            _fetch_steps(Store(run), place / STEPS, step, every=every)
            return place / (below or "").removeprefix("/")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unreadable(run, error) from error
    raise InputError(f"the checkpoints of {run} change faster than they can be fetched; try again")


def _fetch_steps(store: Store, root: Path, step: int | None, *, every: bool) -> None:
    there = stored_steps(store)
    if not there:
        raise InputError(f"there is no checkpoint in {store.url}: wanted the workdir of a run, or its checkpoints")
    if step is not None and step not in there:
        raise InputError(f"checkpoint step {step} is not in {store.url}; steps there: {', '.join(map(str, there))}")
    root.mkdir(exist_ok=True)
    forget_others(root, there)  # what the run has deleted since an earlier call
    for number in reversed(there) if step is None else [step]:
        fetch_step(store, number, there[number], root)
        if not every and CheckpointFiles(root).examine(number).step is not None:
            return


def _unreadable(url: str, error: OSError) -> InputError:
    if not isinstance(error, StoreFailed):  # this machine's disk
        return InputError(f"{url} cannot be fetched to {error.filename or _scratch()}: {error.strerror or error}")
    return InputError(f"{url} cannot be read: {error.strerror}; check the name, your rights there and the network")


def _place(url: str) -> Path:
    """The directory for what is fetched of a run."""
    place = _scratch() / re.sub(r"[^A-Za-z0-9._-]", lambda found: f"%{ord(found[0]):x}", url)[-200:]
    place.mkdir(exist_ok=True)
    return place


@functools.cache
def _scratch() -> Path:
    """A directory of this process, which is deleted at its end."""
    made = Path(tempfile.mkdtemp(prefix="jaxnet-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
