"""One shard of a data set: a file that is either whole or not there, with a report beside it.

What is in a shard is decided by the archive alone. It is written under a name of its own and renamed when it is
whole, so any number of processes may write the same one, and may be killed at any time.
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

from jaxnet.data.photos.decoding import DamagedImage, opened
from jaxnet.data.source import to_mode
from jaxnet.errors import InputError

# ---- One image of an archive: whether it is whole, and in the one form that every reader expects ------
#
# ImageNet calls all its files JPEG, but 22 are CMYK and one is a PNG. Those become RGB JPEGs of the best quality,
# as TFDS makes of them; whatever is a grey or a colour JPEG stays as it is, byte for byte. Nothing here depends on
# which decoders are installed, so the result is the same everywhere with one version of Pillow.


_SMALLEST = 8  # libjpeg decodes at 1/8 in half the time; all of the data is read nevertheless


class Checked(NamedTuple):
    """An image that can be decoded: its file, and what it was converted from, if it was."""

    data: bytes
    was: str | None = None


def check_image(data: bytes) -> Checked:
    """Decode an image, and convert it if need be; Damaged if that fails."""
    with opened(data) as picture:
        if picture.format == "JPEG" and picture.mode in ("L", "RGB"):
            picture.draft(picture.mode, (max(1, picture.width // _SMALLEST), max(1, picture.height // _SMALLEST)))
            picture.load()
            return Checked(data)
        was = f"{picture.mode} {picture.format}"
        return Checked(_jpeg(to_mode(picture, "RGB")), was)


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=100, subsampling=0)
    return file.getvalue()


Encode = Callable[[bytes, int, str], bytes]  # an image's file, label and name, as a record
_AT_ONCE = 128  # images in memory: some 14 MB of ImageNet's


class ShardTask(NamedTuple):
    """A shard to be written: its file's name, and which pieces of which archive it holds."""

    name: str
    archive: Path
    entries: np.ndarray


class ShardReport(NamedTuple):
    """What is in a shard: how many records and bytes; which images were damaged or converted, and how."""

    examples: int
    bytes: int
    damaged: dict[str, str]
    converted: dict[str, str]


def is_written(work: Path, task: ShardTask) -> bool:
    """Say whether a shard is there."""
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
            place(note, work / "reports" / task.name)
        place(own, work / "shards" / task.name)


def read_report(work: Path, task: ShardTask) -> ShardReport:
    """Return the report of a shard that is written."""
    return ShardReport(**json.loads((work / "reports" / task.name).read_text()))


@contextmanager
def scratch(work: Path) -> Iterator[Path]:
    """Give the path of a file that nobody else has, which is removed if it is still there in the end."""
    path = work / "scratch" / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def place(path: Path, target: Path) -> None:
    """Give a finished file its name; it is on the disk before that."""
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

        for start in range(0, len(task.entries), _AT_ONCE):  # a pool would read the whole shard ahead
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
            f"{name} cannot be written in {work}: {' '.join(str(error).split())}. Mend that and start again: it goes "
            "on with this shard"
        ) from error
