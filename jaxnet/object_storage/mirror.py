"""The directory of this machine in which a run writes that belongs in object storage.

Three rules make every instant safe for a kill:

1. A checkpoint is uploaded file by file, its manifest last. Without a manifest no reader sees it.
2. Before a checkpoint come metrics.jsonl, config.json and ledger.jsonl, so that whoever continues from it has them.
3. The next run on this machine goes on from the directory, if the store was filled from it and it has a good
   checkpoint that is as new as the store's. Otherwise it goes on from the store; a directory with a checkpoint that the
   store never got is kept under another name.
"""

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxnet.checkpoints import Heartbeat
from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.checkpoints.lock import Lost
from jaxnet.errors import InputError
from jaxnet.object_storage.lock import BEAT_SECONDS, StoreLock
from jaxnet.object_storage.steps import STEPS, fetch_step, forget_others, local_seal, stored_steps
from jaxnet.object_storage.store import Store, StoreFailed
from jaxnet.object_storage.uploads import FILES, SENDING, Record, Uploads, names_below

Say = Callable[[str], None]
_LONGEST_FILE_SECONDS = 60.0  # after which a lock that is not renewed counts as left anyway


def mirror_of(url: str) -> Path:
    """Return the directory for a run at `url`: below JAXNET_MIRROR, or else below ~/.cache/jaxnet/mirrors."""
    try:
        root = Path(os.environ.get("JAXNET_MIRROR") or Path.home() / ".cache" / "jaxnet" / "mirrors")
    except RuntimeError as error:
        raise InputError(
            f"{url} needs a directory here, and this user has no home; set JAXNET_MIRROR to one"
        ) from error
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", url)[-100:]
    return root.absolute() / f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


class Mirror:
    """The mirror of `url`, held by one run at a time inside a `with`, on one process.

    Entering takes the lock. The directory may be written once it is `ready`, and is uploaded from then on. `finished`
    waits for the end of that; leaving does, too, but only says what is missing.

    Raises InputError, before anything is written, if another run holds the URL, or if the store does not take objects.

    Args:
        url: as `remote_url` gives it.
        begins: takes what is waited for, again and again, in words.
        say: takes a line for a person.
    """

    def __init__(self, url: str, begins: Say, say: Say) -> None:
        if re.search(rf"/{STEPS}(/\d+)?$", url):
            raise InputError(f"{url}: what ends so is a run's checkpoints; give the run another name")
        self._url, self._begins, self._say = url, begins, say
        self._directory = mirror_of(url)
        self._during = contextlib.ExitStack()
        self._fetching = threading.Thread(target=self._fetch, name="download", daemon=True)
        self._left = threading.Event()
        self._failure: Exception | None = None
        self._uploads: Uploads | None = None
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as during:
            try:
                self._store = Store(self._url)
                self._store.check(f"probe/{secrets.token_hex(8)}")
                self._lock = StoreLock(self._store, say=self._say)
            except OSError as error:
                raise self._unusable(error) from error
            during.callback(self._lock.release)
            during.enter_context(Heartbeat(BEAT_SECONDS, self._lock.beat))
            self._during = during.pop_all()
        self._fetching.start()
        return self

    def ready(self, seconds: float) -> bool:
        """Return whether the directory holds what the store does, after at most `seconds`; InputError if it cannot."""
        self._begins(f"the download of {self._url}")
        self._fetching.join(seconds)
        if self._fetching.is_alive():
            self._tell(f"fetching {self._url} to {self._directory}")
            return False
        try:
            if self._failure is not None:
                raise self._failure
            if self._uploads is None:
                self._uploads = Uploads(self._store, self._directory, self._lock.require, self._say)
        except OSError as error:
            raise self._unusable(error) from error
        self._begins("start-up")
        return True

    def fence(self) -> None:
        """Raise Lost if another run has been found to have taken over; asks nobody, and takes no time."""
        self._lock.remember()

    def finished(self, seconds: float) -> bool:
        """Return whether all is uploaded, after at most `seconds`; nothing may be written any more.

        Raises InputError, once it is clear, if something could not be uploaded.
        """
        self._begins(f"the upload to {self._url}")
        if self._uploads is None:
            return True
        if not self._uploads.ended(seconds):
            self._tell(f"uploading what is left to {self._url}")
            return False
        if error := self._uploads.error():
            self._told.add(str(error))
            raise error
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._during:
            # Who takes the lock next must not write beside this download; it ends with the file that it is fetching.
            self._left.set()
            self._fetching.join(2.0)
            if self._fetching.is_alive():
                self._tell(f"waiting for the end of a file that is being fetched from {self._url}")
                self._fetching.join(_LONGEST_FILE_SECONDS)
            self.send(error)

    def send(self, error: BaseException | None = None) -> None:
        """Upload what is complete, and say what is missing in the end, unless `error` says it."""
        try:
            while not self.finished(2.0):
                pass
        except Lost:
            pass
        except InputError as missing:
            if error is None or str(missing) != str(error):
                self._say(str(missing))

    def _fetch(self) -> None:
        try:
            _bring(self._store, self._directory, self._say, self._still_wanted)
        except Exception as error:
            self._failure = error  # for `ready`

    def _still_wanted(self) -> None:
        if self._left.is_set():
            raise OSError("the download was given up")

    def _tell(self, line: str) -> None:
        """Say a line once."""
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _unusable(self, error: OSError) -> InputError:
        if isinstance(error, StoreFailed):
            return InputError(
                f"{self._url} cannot be used: {error.strerror}; check the name, your rights there and the network, or "
                "give another place with --workdir"
            )
        where, why = error.filename or self._directory, error.strerror or error
        return InputError(f"the mirror of {self._url}, {where}, cannot be written: {why}; set JAXNET_MIRROR to another")


# ---- What the directory holds at the start -------------------------------------------------------------


def _bring(store: Store, directory: Path, say: Say, wanted: Callable[[], None]) -> None:
    """Make the directory, and its record, hold what the store does, unless the store was filled from the directory.

    `wanted` is called before each file, and may raise.
    """
    stored = stored_steps(store)
    if directory.exists() and not _is_newest(directory, stored):
        _clear(directory, store.url, say)
    if directory.exists():
        known = Record.read(directory) or Record({}, {})
        known._replace(steps=stored).write(directory)
        return
    # What an earlier start has fetched of these steps before it was ended is not fetched again.
    fresh = directory.with_name(f"{directory.name}.fetching")
    fresh.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        wanted()
        try:
            store.fetch(name, fresh / name)
        except FileNotFoundError:
            (fresh / name).unlink(missing_ok=True)  # of an earlier start, and deleted from the store since
    forget_others(fresh / STEPS, stored)
    for step in reversed(stored):
        fetch_step(store, step, stored[step], fresh / STEPS, wanted)
    Record(stored, {}).write(fresh)
    fresh.rename(directory)


def _is_newest(directory: Path, stored: dict[int, str]) -> bool:
    """Return whether a run may go on from the directory: rule 3 above."""
    record, files = Record.read(directory), CheckpointFiles(directory / STEPS)
    if record is None:
        return False
    if not stored:
        return not record.steps  # else what was uploaded has been deleted there
    newest = max(stored)
    # A kill between the upload and the note of it leaves the checkpoint in `sending`, if not in its place.
    seals = (record.steps.get(newest), local_seal(directory / SENDING), local_seal(files.path(newest)))
    if stored[newest] not in seals or max(record.steps, default=0) > newest:
        return False
    here = files.steps() if files.root.is_dir() else []
    return any(files.examine(step).step is not None for step in reversed(here) if step >= newest)


def _clear(directory: Path, url: str, say: Say) -> None:
    """Delete the directory, or move it aside if it holds a checkpoint that was never uploaded."""
    record = Record.read(directory) or Record({}, {})
    if record.unsent(directory):
        places = (directory.with_name(f"{directory.name}.{number}") for number in itertools.count(1))
        aside = next(place for place in places if not place.exists())
        directory.rename(aside)
        say(f"going on from {url}, not from what this machine wrote; {aside} keeps that, some of which is nowhere else")
        return
    doomed = directory.with_name(f"{directory.name}.deleting")
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    shutil.rmtree(doomed)


# ---- What other processes have ---------------------------------------------------------------------------


def send_profile(url: str, process: int) -> None:
    """Upload the trace of a process that does not hold the mirror; where that fails, it stays here."""
    directory = mirror_of(url)
    with contextlib.suppress(OSError, InputError):
        for name in names_below(directory, f"profile/process_{process}"):
            Store(url).send(directory / name, name)
