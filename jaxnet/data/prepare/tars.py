"""Find where each image lies in the official archives of ImageNet, and its label.

The archives are not compressed, so an image is a piece of the file, (offset, size), and nothing needs unpacking.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from jaxnet.errors import InputError

TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
ENTRY = np.dtype([("name", "S32"), ("label", "<i4"), ("offset", "<i8"), ("size", "<i8")])

_CLASS = re.compile(r"(n\d{8})\.tar")
_TRAINING_IMAGE = re.compile(r"(n\d{8})_\d{1,8}\.JPEG")
_VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_SOURCE = "get it again from image-net.org"
Advance = Callable[[int], None]


def index_train(path: Path, synsets: list[str], advance: Advance) -> np.ndarray:
    """Find the images in the training archive, a tar of one tar for each class: ENTRY [n], in its order.

    Args:
        path: the archive.
        synsets: the names of the classes in the order of their labels.
        advance: called with the number of images found since the last call.

    Raises:
        InputError: it is absent, another archive, or truncated.
    """
    labels = {synset: label for label, synset in enumerate(synsets)}
    classes = []
    with _opened(path) as file:
        for outer in _members(file, path):
            synset = _matched(_CLASS, outer.name, path, "n01440764.tar and 999 others")
            if synset not in labels:
                raise InputError(f"{path} holds {outer.name}, which is no class of ImageNet 2012: {_SOURCE}")
            found = _index_class(file, outer, path / outer.name, labels[synset])
            classes.append(found)
            advance(len(found))
    return _checked(classes, path)


def _index_class(file: IO[bytes], outer: tarfile.TarInfo, path: Path, label: int) -> np.ndarray:
    synset, start, rows = outer.name.removesuffix(".tar"), outer.offset_data, []
    for image in _members(_Part(file, start, outer.size), path):
        if _matched(_TRAINING_IMAGE, image.name, path, f"{synset}_1.JPEG and so on") != synset:
            raise InputError(f"{path} holds {image.name}, which does not belong there: {_SOURCE}")
        rows.append((image.name.encode(), label, start + image.offset_data, image.size))
    return np.array(rows, ENTRY)


def index_validation(path: Path, labels: list[int], advance: Advance) -> np.ndarray:
    """Find the images in the validation archive: ENTRY [n]; `labels` holds those of the images 1, 2, 3, ..."""
    rows = []
    with _opened(path) as file:
        for image in _members(file, path):
            number = int(_matched(_VALIDATION_IMAGE, image.name, path, "ILSVRC2012_val_00000001.JPEG and so on"))
            if not 1 <= number <= len(labels):
                raise InputError(f"{path} holds {image.name}, but there are {len(labels)} images: {_SOURCE}")
            rows.append((image.name.encode(), labels[number - 1], image.offset_data, image.size))
            advance(1)
    return _checked([np.array(rows, ENTRY)], path)


def fingerprint(paths: list[Path], *details: object) -> str:
    """Return a digest of the sizes and times of the archives, and of `details`: it changes when one is replaced."""
    stats = []
    for path in paths:
        with _opened(path) as file:
            stat = os.fstat(file.fileno())
        stats.append((path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr((stats, details)).encode()).hexdigest()[:12]


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}. Wanted in --manual-dir: {TRAIN} and {VALIDATION}, as "
            "image-net.org gives them to those who register there"
        ) from error


def _members(file: IO[bytes] | _Part, path: Path) -> Iterator[tarfile.TarInfo]:
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isreg():
                    raise InputError(
                        f"{path} holds {member.name}, which is not a file: it is another archive; {_SOURCE}"
                    )
                yield member
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                # tarfile takes a header that it cannot read for the end of the archive.
                raise tarfile.ReadError(f"bad header at byte {tar.offset}")
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{path} is not a whole tar archive: {error}; {_SOURCE}") from error


def _matched(pattern: re.Pattern[str], name: str, path: Path, wanted: str) -> str:
    match = pattern.fullmatch(name)
    if not match:
        raise InputError(f"{path} holds {name}, wanted {wanted}: it is another archive; {_SOURCE}")
    return match[1]


def _checked(pieces: list[np.ndarray], path: Path) -> np.ndarray:
    entries = np.concatenate([np.empty(0, ENTRY), *pieces])
    if not len(entries):
        raise InputError(f"{path} holds no images: {_SOURCE}")
    if len(np.unique(entries["name"])) != len(entries):
        raise InputError(f"{path} holds an image twice: {_SOURCE}")
    return entries


class _Part(io.RawIOBase):
    """A piece of a file, as a file: the inner tar of a class, read in place."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = os.SEEK_SET) -> int:
        self._at = to
        return to

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytes:
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(count, self._size - self._at)))
        self._at += len(data)
        return data
