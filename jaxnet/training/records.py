"""What a run leaves behind: config.json, metrics.jsonl, TensorBoard files, summary.json. Process 0 writes."""

import contextlib
import json
import logging
import math
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxnet.errors import InputError
from jaxnet.files import OddFile, read_object, replace
from jaxnet.training.observer import Observer

# ---- A file that grows by whole records, on a disk that may be full or gone for a while ---------------


_log = logging.getLogger("jaxnet")
TAIL = 1 << 20  # bytes that are read at once to find the end of the last whole line


class AppendOnlyFile:
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
        self._whole: int | None = None  # bytes of whole records, where half a one could not be cut off behind them
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
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        if stat.S_ISFIFO(os.fstat(opened).st_mode):  # once it is full, training would wait for its reader
            os.close(opened)
            raise OddFile(self._path, "it is a pipe, wanted a file")
        return opened

    def _add(self, record: bytes) -> None:
        if os.fstat(self._file).st_nlink == 0:  # deleted, perhaps with its directory
            opened = self._opened()
            os.close(self._file)
            self._file, self._whole = opened, None
        if self._whole is not None:
            os.ftruncate(self._file, self._whole)
            self._whole = None
        before, rest = os.fstat(self._file).st_size, memoryview(record)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            self._whole = before
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
                self._whole = None
            raise


def cut_half_line(path: Path, say: Callable[[str], None] = _log.warning) -> None:
    """Cut off a last line without its end, which a killed process has left; raises OSError if that cannot be done."""
    if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
        return
    with path.open("r+b") as file:
        size = place = file.seek(0, os.SEEK_END)
        whole = 0
        while place and not whole:
            start = file.seek(max(0, place - TAIL))
            end = file.read(place - start).rfind(b"\n") + 1
            whole, place = start + end if end else 0, start
        if whole < size:
            file.truncate(whole)
            say(f"{path} ended in half a line, which was cut off")


# ---- TensorBoard's files of scalars, appended record by record ----------------------------------------
#
# tensorboardX's own writer has a thread that ends at the first failure of the disk, after which a run that writes on
# would wait for it for ever.


class TensorBoardWriter:
    """One new file of events in `directory`; raises OSError if it cannot be made."""

    def __init__(self, directory: Path, *, fence: Callable[[], None] = lambda: None) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2  # takes a while to import

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendOnlyFile(directory / name, fence=fence)
        self._file.append(_record(self._event(wall_time=time.time(), file_version="brain.Event:2")))

    def write(self, step: int, values: dict[str, Any]) -> None:
        """The values of a step, by name."""
        scalars = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._file.append(_record(self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars))))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _record(event: Any) -> bytes:
    """An event as a TFRecord: its length, its bytes, and the checksum of each."""
    from tensorboardX.record_writer import masked_crc32c

    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    return b"".join(
        (length, struct.pack("<I", masked_crc32c(length)), content, struct.pack("<I", masked_crc32c(content)))
    )


def make_workdir(workdir: Path) -> None:
    """Make the directory of a run, or raise an InputError that says what is in the way."""
    try:
        str(workdir).encode()
        workdir.mkdir(parents=True, exist_ok=True)
    except ValueError as error:  # it holds NUL, or is no UTF-8, which JAX asks for
        raise InputError(f"workdir {workdir} is no name in UTF-8; give another with --workdir") from error
    except OSError as error:
        reason = "it is a file" if os.path.isfile(workdir) else error.strerror  # noqa: PTH113  # as it never fails
        raise InputError(f"workdir {workdir} cannot be made: {reason}; give another with --workdir") from error
    if not os.access(workdir, os.W_OK | os.X_OK):
        raise InputError(f"workdir {workdir} cannot be written to; give another with --workdir")


def as_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Strict JSON, which has no word for NaN and infinity: null in their place.

    >>> as_json({"loss": float("nan"), "step": 3})
    '{"loss": null, "step": 3}'
    """
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either the old one or the new one, whatever happens on the way."""
    with writing(path):
        replace(path, text)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A failure of the disk inside is an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; mend that, or use another --workdir") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The config that a run has written, as `jaxnet.config.keys.flatten` gives it."""
    try:
        return read_object(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; move it away, or use another --workdir") from error
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: {error}; --allow-config-change writes it anew and continues with the config given"
        ) from error


def has_settings(path: Path) -> bool:
    """Whether the config that a run has written is there, and whole."""
    try:
        read_settings(path)
    except InputError:
        return False
    return True


class MetricsWriter(Observer):
    """Appends metrics to metrics.jsonl, and to TensorBoard if wanted. Where a disk is full, they are left out.

    A step that a resume runs again is written again; the later line is the one that counts. Before each line `fence` is
    called, which raises if this run may write no more.
    """

    def __init__(self, workdir: Path, *, tensorboard: bool, fence: Callable[[], None] = lambda: None) -> None:
        path, board = workdir / "metrics.jsonl", workdir / "tensorboard"
        with writing(path):
            cut_half_line(path)
            self._lines = AppendOnlyFile(path, fence=fence)
        self._board: TensorBoardWriter | None = None
        if tensorboard:
            try:
                with writing(board):
                    self._board = TensorBoardWriter(board, fence=fence)
            except InputError:
                self._lines.close()
                raise

    def on_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """One line: step, split, then `values`; the numbers among them also go to TensorBoard as `split/name`."""
        self._lines.append((as_json({"step": step, "split": split, **values}) + "\n").encode())
        if self._board is not None:
            numbers = {f"{split}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self._board.write(step, numbers)

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        if self._board is not None:
            self._board.close()
