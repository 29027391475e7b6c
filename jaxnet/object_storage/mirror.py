"""The directory of this machine in which a run writes that belongs in object storage, and the thread that uploads it.

    mirror.json     in the directory: the checkpoints that it knows to be in the store, each by its manifest's digest

Three rules make every instant safe for a kill:

1. A checkpoint is uploaded file by file, its manifest last. Without a manifest no reader sees it.
2. Before a checkpoint come metrics.jsonl, config.json and ledger.jsonl, so that whoever continues from it has them.
3. The next run on this machine uploads what was left. A run on another machine continues from what the store has; then
   a directory with a checkpoint that was never uploaded is kept under another name.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxnet.checkpoints import Heartbeat
from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.checkpoints.lock import Lost
from jaxnet.errors import InputError
from jaxnet.object_storage.lock import BEAT_SECONDS, StoreLock
from jaxnet.object_storage.steps import fetch_step, local_seal, retire, send_step, stored_steps
from jaxnet.object_storage.store import Store

Fence = Callable[[], None]
Say = Callable[[str], None]

FILES = ("config.json", "metrics.jsonl", "ledger.jsonl", "summary.json")
_FOLDERS = ("tensorboard", "profile", "hlo", "checkpoints/damaged")  # uploaded, but not fetched to continue
_RECORD = "mirror.json"
_STEPS = "checkpoints"
_SENDING = "sending"  # hard links to the checkpoint that is uploaded: the run may delete its own meanwhile

_LOOK_SECONDS = 2.0  # between two looks for a new checkpoint
_FILES_SECONDS = 60.0  # between two uploads of the small files, where no checkpoint comes
_RETRY_SECONDS = 10.0
_PATIENCE_SECONDS, _TRIES = 120.0, 3  # at the end: it gives up after both, or after twice as long without a byte


def mirror_of(url: str) -> Path:
    """Return the directory for a run at `url`: below JAXNET_MIRROR, or else below ~/.cache/jaxnet/mirrors."""
    root = Path(os.environ.get("JAXNET_MIRROR") or Path.home() / ".cache" / "jaxnet" / "mirrors")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", url)[-100:]
    return root.absolute() / f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


class Mirror:
    """The mirror of `url`, held by one run at a time inside a `with`, on one process.

    Entering fetches what the store has, where the directory does not have it, and begins to upload. Leaving waits until
    all is uploaded, and says so if that fails; `finished`, before it, raises then.

    Raises InputError, before anything is written, if another run holds the URL, or if the store does not take objects.

    Args:
        url: as `remote_url` gives it.
        begins: takes what is waited for, again and again, in words.
        say: takes a line for a person.
    """

    def __init__(self, url: str, begins: Say, say: Say) -> None:
        self._url, self._begins, self._say = url, begins, say
        self._directory = mirror_of(url)
        self._during, self._told = contextlib.ExitStack(), False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as during, _named(self._url):
            store = Store(self._url)
            store.check(f"probe-{secrets.token_hex(8)}")
            self._lock = StoreLock(store, say=self._say)
            during.callback(self._lock.release)
            during.enter_context(Heartbeat(BEAT_SECONDS, self._lock.beat))
            _bring(store, self._directory, lambda: self._begins(f"the download of {self._url}"), self._say)
            self._uploads = Uploads(store, self._directory, self._lock.require, self._say)
            self._during = during.pop_all()
        return self

    def fence(self) -> None:
        """Raise Lost if another run has been found to have taken over; asks nobody, and takes no time."""
        self._lock.remember()

    def finished(self, seconds: float) -> bool:
        """Return whether all is uploaded, after at most `seconds`; nothing may be written any more.

        Raises InputError, once it is clear, if something could not be uploaded.
        """
        self._begins(f"the upload to {self._url}")
        if not self._uploads.ended(seconds):
            return False
        if missing := self._uploads.missing():
            self._told = True
            raise InputError(missing)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._during:
            while not self._uploads.ended(0.5):
                self._begins(f"the upload to {self._url}")
            if not self._told and not isinstance(error, Lost) and (missing := self._uploads.missing()):
                self._say(missing)


@contextlib.contextmanager
def _named(url: str) -> Iterator[None]:
    """Make a failure of the store or the disk inside an InputError that names `url`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{url} cannot be used: {error.strerror or error}; check the name, your rights there and the network, or "
            "give another place with --workdir"
        ) from error


# ---- At the start: what the mirror holds ---------------------------------------------------------------


def _bring(store: Store, directory: Path, moved: Callable[[], None], say: Say) -> None:
    """Make the directory hold what the store does, unless the store was filled from it."""
    stored = stored_steps(store)
    if directory.exists() and not _is_newest(directory, stored):
        _clear(directory, store.url, say)
    if directory.exists():
        return
    fresh = directory.with_name(f"{directory.name}.fetching")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            store.fetch(name, fresh / name, moved)
    for step in stored:
        fetch_step(store, step, fresh / _STEPS, moved)
    _write_record(fresh, stored)
    fresh.rename(directory)


def _is_newest(directory: Path, stored: dict[int, str]) -> bool:
    """Return whether the newest checkpoint of the store is one that this directory has sent, or if there is none yet.

    The run may have been killed between sending it and noting that; then the directory still has the same checkpoint.
    """
    newest = max(stored, default=None)
    known = _read_record(directory)
    if newest is None or known.get(newest) == stored[newest]:
        return max(known, default=None) == newest
    return local_seal(CheckpointFiles(directory / _STEPS).path(newest)) == stored[newest]


def _clear(directory: Path, url: str, say: Say) -> None:
    """Delete the directory, or move it aside if it holds a checkpoint that was never uploaded."""
    if not _unsent(directory, _read_record(directory)):
        shutil.rmtree(directory)
        return
    places = (directory.with_name(f"{directory.name}.{number}") for number in itertools.count(1))
    aside = next(place for place in places if not place.exists())
    directory.rename(aside)
    say(f"{url} was changed by another run since this machine wrote it; {aside} keeps what was not uploaded")


def _unsent(directory: Path, sent: dict[int, str]) -> list[int]:
    """The checkpoints in the directory that are not among those `sent`, in ascending order."""
    files = CheckpointFiles(directory / _STEPS)
    if not files.root.is_dir():
        return []
    seals = {step: local_seal(files.path(step)) for step in files.steps()}
    return [step for step, seal in seals.items() if seal and sent.get(step) != seal]


def _write_record(directory: Path, stored: dict[int, str]) -> None:
    scratch = directory / f"{_RECORD}.tmp"
    scratch.write_text(json.dumps(stored) + "\n")
    scratch.replace(directory / _RECORD)


def _read_record(directory: Path) -> dict[int, str]:
    try:
        return {int(step): str(seal) for step, seal in json.loads((directory / _RECORD).read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


# ---- While it runs: what is uploaded, and when ---------------------------------------------------------


class Uploads:
    """Uploads a directory from a thread of its own, until `ended`.

    Checkpoints come first, the newest before older ones. What fails is said once and tried again.

    Args:
        store: where to.
        directory: the mirror.
        fence: raises Lost if another run has taken over; it may ask the store.
        say: takes a line for a person.
    """

    def __init__(self, store: Store, directory: Path, fence: Fence, say: Say) -> None:
        self._store, self._directory, self._fence, self._say = store, directory, fence, say
        self._steps = CheckpointFiles(directory / _STEPS)
        self._stored = stored_steps(store)
        self._sent: dict[str, tuple[int, int]] = {}  # time and size of each small file as it was uploaded
        self._files_due = 0.0
        self._failure = ""
        self._moved_at = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        self._thread.start()

    def ended(self, seconds: float) -> bool:
        """Upload what is left and end; return whether that has ended, after at most `seconds`."""
        if not self._ending.is_set():
            self._moved()
            self._ending.set()
        self._thread.join(seconds)
        if self._thread.is_alive() and self._waited() > 2 * _PATIENCE_SECONDS:
            self._failure = "it does not answer"
            return True
        return not self._thread.is_alive()

    def missing(self) -> str:
        """What the store lacks at the end, as a line; "" if nothing."""
        if not self._failure:
            return ""
        return (
            f"{self._store.url} lacks some of this run: {self._failure}; {self._directory} has all of it, and the same "
            "command on this machine uploads it"
        )

    def _run(self) -> None:
        wait = _LOOK_SECONDS
        try:
            while not self._ending.wait(wait):
                wait = _LOOK_SECONDS if self._tried() else _RETRY_SECONDS
            self._files_due = 0.0
            first = time.monotonic()
            for tries in itertools.count(1):
                if self._tried() or (tries >= _TRIES and time.monotonic() - first > _PATIENCE_SECONDS):
                    return
                time.sleep(_LOOK_SECONDS)
        except InputError as error:  # Lost: the main thread meets it at its next line of metrics
            self._failure = str(error)

    def _tried(self) -> bool:
        """Upload what is new; False, with a line when this begins, where the store or the disk does not do it."""
        try:
            self._upload()
        except OSError as error:
            reason = error.strerror or str(error)
            if not self._failure:
                self._say(
                    f"{self._store.url} cannot be written: {reason}; training goes on, and {self._directory} keeps "
                    "what is not uploaded, until it can"
                )
            self._failure = reason
            return False
        if self._failure:
            self._say(f"{self._store.url} is written again, and lacks nothing")
        self._failure = ""
        return True

    def _upload(self) -> None:
        """Everything that is not in the store as it is in the mirror."""
        while unsent := _unsent(self._directory, self._stored):
            self._upload_files()
            self._upload_step(unsent[-1])
        if time.monotonic() >= self._files_due:
            self._upload_files()

    def _upload_step(self, step: int) -> None:
        copy = self._directory / _SENDING
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(self._steps.path(step), copy, copy_function=_linked)
        except (FileNotFoundError, shutil.Error):
            if self._steps.path(step).exists():
                raise
            return  # the run has just deleted it
        send_step(self._store, copy, step, self._fence, self._moved)
        retire(self._store, self._steps.steps(), self._fence)
        self._stored = stored_steps(self._store)
        _write_record(self._directory, self._stored)
        shutil.rmtree(copy, ignore_errors=True)

    def _upload_files(self) -> None:
        """The files that have changed since they were uploaded, as whole objects."""
        self._fence()
        for name in self._files():
            with contextlib.suppress(FileNotFoundError):
                now = (self._directory / name).stat()
                state = (now.st_mtime_ns, now.st_size)
                if self._sent.get(name) != state:
                    self._store.send(self._directory / name, name, self._moved)
                    self._sent[name] = state
        self._files_due = time.monotonic() + _FILES_SECONDS

    def _files(self) -> list[str]:
        return [*FILES, *(name for folder in _FOLDERS for name in names_below(self._directory, folder))]

    def _moved(self) -> None:
        self._moved_at = time.monotonic()

    def _waited(self) -> float:
        """Seconds since something got through."""
        return time.monotonic() - self._moved_at


def send_profile(url: str) -> None:
    """Upload the traces of a process that does not hold the mirror; what fails is left out."""
    directory = mirror_of(url)
    with contextlib.suppress(OSError):
        for name in names_below(directory, "profile"):
            Store(url).send(directory / name, name)


def names_below(directory: Path, folder: str) -> list[str]:
    """The files in a folder of a directory and in its folders, by their paths from the directory on."""
    files = (path for path in (directory / folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in files)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
