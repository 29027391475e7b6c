"""A file that grows by whole records, on a disk that may be full or gone for a while."""

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger("jaxnet")
_TAIL = 1 << 20  # bytes: longer than any line


class Appended:
    """Appends records to `path`, each whole or not at all; where that fails, training must go on.

    What cannot be written is left out. That is said once, and once more when the file is written again. Before each
    record `fence` is called, which raises if this run may write no more. Raises OSError if the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        fence: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self._path, self._fence, self._say = path, fence, say
        self._file = self._opened()
        self._left_out = 0

    def append(self, record: bytes) -> None:
        """Add a record, if the disk takes it."""
        try:
            self._fence()
            self._add(record)
        except OSError as error:
            if not self._left_out:
                self._say(f"{self._path} cannot be written: {error.strerror}; training goes on without, until it can")
            self._left_out += 1
            return
        if self._left_out:
            self._say(f"{self._path} is written again; {self._left_out} records are missing in it")
        self._left_out = 0

    def close(self) -> None:
        """Close the file; what could not be written is lost."""
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _add(self, record: bytes) -> None:
        if os.fstat(self._file).st_nlink == 0:  # deleted, perhaps with its directory
            opened = self._opened()
            os.close(self._file)
            self._file = opened
        before, rest = os.fstat(self._file).st_size, memoryview(record)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise


def cut_half_line(path: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Cut off a last line without its end, which a killed process has left; raises OSError if that cannot be done."""
    if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - _TAIL))
        tail = file.read()
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            file.truncate(start + whole)
            say(f"{path} ended in half a line, which was cut off")
