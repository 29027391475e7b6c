"""The thread that uploads what a run has finished writing, and the record of what the store has.

mirror.json     in the directory: its checkpoints and files that are in the store as they are here
sending/        hard links to the checkpoint that is uploaded: the run may delete its own meanwhile
sending.file    a copy of the file that is uploaded: the run may write on meanwhile
"""

import contextlib
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.errors import InputError, one_line
from jaxnet.files import is_unfinished, read_object, replace
from jaxnet.object_storage.steps import STEPS, local_seal, retire, send_step, stored_steps
from jaxnet.object_storage.store import Store, StoreFailed

FILES = ("config.json", "plan.json", "metrics.jsonl", "ledger.jsonl", "summary.json", "trackers.json")
SENDING = "sending"
_FOLDERS = ("tensorboard", "profile", "hlo", f"{STEPS}/damaged")  # uploaded, but not fetched to continue

_LOOK_SECONDS = 2.0  # between two looks for a new checkpoint
_FILES_SECONDS = 60.0  # between two uploads of the small files, where no checkpoint comes
_RETRY_SECONDS = 10.0
_PATIENCE_SECONDS, _TRIES = 120.0, 3  # at the end: it gives up after both
_SILENCE_SECONDS = 240.0  # at the end: it also gives up after so long without a byte


class Record(NamedTuple):
    """What of a directory is known to be in the store.

    Attributes:
        steps: the checkpoints, each by the digest of its manifest.
        files: the other files, each by its time and size when it was uploaded.
    """

    steps: dict[int, str]
    files: dict[str, tuple[int, int]]

    @classmethod
    def read(cls, directory: Path) -> "Record | None":
        """Return that of a directory; None if it has none, and so is no whole mirror."""
        try:
            said = read_object(directory / "mirror.json")
            steps = {int(step): str(seal) for step, seal in said["steps"].items()}
            return cls(steps, {name: (int(time), int(size)) for name, (time, size) in said["files"].items()})
        except (OSError, ValueError, ArithmeticError, TypeError, LookupError, AttributeError):
            return None

    def write(self, directory: Path) -> None:
        """Write it to a directory, whole or not at all."""
        replace(directory / "mirror.json", json.dumps(self._asdict()) + "\n")

    def unsent(self, directory: Path) -> list[int]:
        """Return the checkpoints in a directory that the store does not have, in ascending order."""
        files = CheckpointFiles(directory / STEPS)
        if not files.root.is_dir():
            return []
        seals = {step: local_seal(files.path(step)) for step in files.listed()}
        return [step for step, seal in seals.items() if seal and self.steps.get(step) != seal]


class Uploads:
    """Uploads a directory from a thread of its own, until `ended`.

    Checkpoints come first, the newest before older ones. What fails is said once and tried again.

    Args:
        store: where to.
        directory: what to upload; it has a record.
        fence: raises Lost if another run has taken over; it may ask the store.
        say: takes a line for a person.
    """

    def __init__(self, store: Store, directory: Path, fence: Callable[[], None], say: Callable[[str], None]) -> None:
        self._store, self._directory, self._fence, self._say = store, directory, fence, say
        self._steps = CheckpointFiles(directory / STEPS)
        self._record = Record.read(directory) or Record({}, {})
        self._files_due = 0.0
        self._kept: list[int] | None = None  # what the run had when old ones were last deleted from the store
        self._failure = ""
        self._refused: InputError | None = None
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
        if self._thread.is_alive() and time.monotonic() - self._moved_at > _SILENCE_SECONDS:
            self._failure = "it does not answer"
            return True
        return not self._thread.is_alive()

    def error(self) -> InputError | None:
        """Return why the store lacks something at the end; None if it lacks nothing."""
        if self._refused is not None or not self._failure:
            return self._refused
        return InputError(
            f"{self._store.url} lacks some of this run: {self._failure}; {self._directory} has all of it, and the same "
            "command on this machine uploads it"
        )

    # ---- The thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = _LOOK_SECONDS
        try:
            while not self._ending.wait(wait):
                wait = _LOOK_SECONDS if self._tried() else _RETRY_SECONDS
            self._files_due, first = 0.0, time.monotonic()
            for tries in itertools.count(1):
                if self._tried() or (tries >= _TRIES and time.monotonic() - first > _PATIENCE_SECONDS):
                    return
                time.sleep(_LOOK_SECONDS)
        except InputError as error:  # such as Lost, which the main thread meets at its next line of metrics
            self._refused = error
        except Exception as error:
            self._failure = f"{type(error).__name__}: {one_line(error)}"
            self._say(f"nothing more is uploaded to {self._store.url}: {self._failure}")

    def _tried(self) -> bool:
        """Upload what is new; False, with a line when this begins, where the store or the disk does not do it."""
        try:
            self._upload()
        except OSError as error:
            where = "" if isinstance(error, StoreFailed) else f"{error.filename or self._directory}: "
            reason = f"{where}{error.strerror or error}"
            if not self._failure:
                self._say(
                    f"{self._store.url} cannot be brought up to date: {reason}; this is tried again, and "
                    f"{self._directory} keeps what is not uploaded"
                )
            self._failure = reason
            return False
        if self._failure:
            self._say(f"{self._store.url} is up to date again")
        self._failure = ""
        return True

    def _upload(self) -> None:
        """Everything that is not in the store as it is in the directory; what only a person looks at comes last."""
        while unsent := self._record.unsent(self._directory):
            self._upload_files(FILES)
            self._upload_step(unsent[-1])
        # The run deletes an old checkpoint after it has written a new one, so the new one may be uploaded before that.
        if self._kept is not None and self._kept != self._steps.listed():
            self._retire()
        if time.monotonic() >= self._files_due:
            self._upload_files(FILES)
            for folder in _FOLDERS:
                self._upload_files(names_below(self._directory, folder))
            self._files_due = time.monotonic() + _FILES_SECONDS

    def _upload_step(self, step: int) -> None:
        copy = self._directory / SENDING
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(self._steps.path(step), copy, copy_function=_linked)
        except (FileNotFoundError, shutil.Error):
            if self._steps.path(step).exists():
                raise
            return  # the run has just deleted it
        send_step(self._store, copy, step, self._fence, self._moved)
        self._retire()
        shutil.rmtree(copy, ignore_errors=True)  # only now: until the record names it, it shows that it was sent

    def _retire(self) -> None:
        """Delete from the store what the run has deleted, and note what is left."""
        self._kept = self._steps.listed()
        retire(self._store, self._kept, self._fence)
        self._record = self._record._replace(steps=stored_steps(self._store))
        self._record.write(self._directory)

    def _upload_files(self, names: Sequence[str]) -> None:
        """Those of the files that have changed since they were uploaded, as whole objects."""
        self._fence()
        copy = self._directory / f"{SENDING}.file"
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                now = (self._directory / name).stat()
                state = (now.st_mtime_ns, now.st_size)
                if self._record.files.get(name) == state:
                    continue
                shutil.copyfile(self._directory / name, copy)
                self._fence()
                self._store.send(copy, name, self._moved)
                self._record.files[name] = state
        copy.unlink(missing_ok=True)
        self._record.write(self._directory)

    def _moved(self) -> None:
        self._moved_at = time.monotonic()


def names_below(directory: Path, folder: str) -> list[str]:
    """The files in a folder of a directory and in its folders, by their paths from the directory on."""
    files = (path for path in (directory / folder).rglob("*") if path.is_file() and not is_unfinished(path.name))
    return sorted(path.relative_to(directory).as_posix() for path in files)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
