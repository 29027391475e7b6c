"""Write one shard of a data set: a file that is either complete or absent, with a report beside it.

The archive alone decides what is in a shard, so any number of processes may write the same one, on any hosts, and
each may be killed at any time:

1. The records go into a file of this process's own in `scratch/`. A kill leaves it there, and nobody reads it.
2. The report is renamed into `reports/`, before the shard, so every visible shard has a report.
3. The shard is flushed and renamed into `shards/`. If two processes wrote it, the second replaces equal bytes.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from jaxnet.data.photos.decoding import DamagedImage, open_image
from jaxnet.data.source import to_mode
from jaxnet.errors import InputError, one_line
from jaxnet.files import read_object, record_of


class PrepareListener:
    """Is told how far long work is; this one ignores it, subclasses show it."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start a phase: `what` has `total` images, of which `done` are finished already. The phase before is over."""

    def advance(self, images: int) -> None:
        """Count this many more images as finished."""

    def say(self, line: str) -> None:
        """Show a line to the person who waits."""


# ---- Check one image ------------------------------------------------------------------------------------
#
# ImageNet calls all its files JPEG, but 22 are CMYK and one is a PNG. Those become RGB JPEGs of the best quality, as
# TFDS does; grey and colour JPEGs stay as they are, byte for byte. Nothing here depends on the installed decoders, so
# the result is the same everywhere with one version of Pillow.

_SHRINK = 8  # libjpeg decodes at 1/8 in half the time, and still reads all of the data


class Checked(NamedTuple):
    """An image that can be decoded: its file, and the format that it was converted from, if it was."""

    data: bytes
    was: str | None = None


def check_image(data: bytes) -> Checked:
    """Decode an image, and convert it if necessary; DamagedImage if that fails."""
    with open_image(data) as picture:
        if picture.format == "JPEG" and picture.mode in ("L", "RGB"):
            picture.draft(picture.mode, (max(1, picture.width // _SHRINK), max(1, picture.height // _SHRINK)))
            picture.load()
            return Checked(data)
        was = f"{picture.mode} {picture.format}"
        return Checked(_jpeg(to_mode(picture, "RGB")), was)


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=100, subsampling=0)
    return file.getvalue()


# ---- Write a shard --------------------------------------------------------------------------------------

Encode = Callable[[bytes, int, str], bytes]  # from an image's file, label and name to a record
_AT_ONCE = 128  # images in memory: about 14 MB of ImageNet


class ShardTask(NamedTuple):
    """A shard to write: the name of its file, and the pieces of an archive that it holds."""

    name: str
    archive: Path
    entries: np.ndarray


class ShardReport(NamedTuple):
    """The content of a shard: the number of records and bytes; the damaged and converted images, with reasons."""

    examples: int
    bytes: int
    damaged: dict[str, str]
    converted: dict[str, str]


def is_written(work: Path, task: ShardTask) -> bool:
    """Return whether a shard is there."""
    return (work / "shards" / task.name).exists()


def write_shard(
    task: ShardTask, work: Path, encode: Encode, pool: ThreadPoolExecutor, advance: Callable[[int], None]
) -> None:
    """Write `work/shards/NAME`, and before it `work/reports/NAME`; a damaged image is left out and reported."""
    report = ShardReport(0, 0, {}, {})
    with _writing(task.name, work), scratch(work) as own:
        with _record_writer(own) as write:
            for name, label, image in _images(task, pool):
                if isinstance(image, DamagedImage):
                    report.damaged[name] = str(image)
                else:
                    if image.was:
                        report.converted[name] = image.was
                    record = encode(image.data, label, name)
                    write(record)
                    report = report._replace(examples=report.examples + 1, bytes=report.bytes + len(record))
                advance(1)
        _check(own, report.examples)
        with scratch(work) as note:
            note.write_text(json.dumps(report._asdict()))
            move_into_place(note, work / "reports" / task.name)
        move_into_place(own, work / "shards" / task.name)


def read_report(work: Path, task: ShardTask) -> ShardReport:
    """Return the report of a written shard."""
    path = work / "reports" / task.name
    try:
        return record_of(ShardReport, read_object(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no report of a shard: {error}; remove {work} and start again") from error


@contextmanager
def scratch(work: Path) -> Iterator[Path]:
    """Yield a path that no other process uses; the file is removed at the end if it is still there."""
    path = work / "scratch" / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def move_into_place(path: Path, target: Path) -> None:
    """Flush a finished file to the disk, then rename it to `target`."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(target)


def _images(task: ShardTask, pool: ThreadPoolExecutor) -> Iterator[tuple[str, int, Checked | DamagedImage]]:
    with task.archive.open("rb") as archive:
        number = archive.fileno()

        def image(entry: np.void) -> Checked | DamagedImage:
            try:
                data = os.pread(number, int(entry["size"]), int(entry["offset"]))
                if len(data) < entry["size"]:
                    raise OSError(f"{task.archive} has become shorter")
                return check_image(data)
            except DamagedImage as error:
                return error

        for start in range(0, len(task.entries), _AT_ONCE):  # in pieces: `pool.map` would read the whole shard ahead
            entries = task.entries[start : start + _AT_ONCE]
            for entry, result in zip(entries, pool.map(image, entries), strict=True):
                yield entry["name"].decode(), int(entry["label"]), result


@contextmanager
def _record_writer(path: Path) -> Iterator[Callable[[bytes], None]]:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")  # as TFDS writes it
    try:
        yield writer.write
    finally:
        writer.close()


def _check(path: Path, examples: int) -> None:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(path))
    found = reader.num_records()
    reader.close()
    if found != examples:
        raise OSError(f"{examples} records were written, and {found} are there")


@contextmanager
def _writing(name: str, work: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError is ArrayRecord's
        raise InputError(
            f"{name} cannot be written in {work}: {one_line(error)}. Fix that and start again: it goes on with this "
            "shard"
        ) from error
