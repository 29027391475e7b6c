"""A manifest says what a checkpoint holds and has a digest of every file, so that damage is found and named.

Orbax keeps no checksum of what it writes: a flipped bit in a checkpoint restores silently as another number.
The manifest closes that gap. It is the last file written into a directory, and it seals itself: its text
follows from its content alone and holds a digest of that content, so that a change of any byte of it shows.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from jaxnet.errors import InputError, printable
from jaxnet.files import OddFile, open_regular, parse_object, read_bounded, record_of, regular

NAME = "manifest.json"
_LOST_FILE = (errno.EIO, errno.ESTALE)  # a failing disk, a file server: the content will not come back
_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG)  # something stands there that is no file
_MOST_CHARACTERS = 100  # of a file's name in a message


class File(NamedTuple):
    """The size and digest that a file had when the manifest was written."""

    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """`about` is the JSON object that the writer gave; `files` has every file by its relative path."""

    about: dict[str, Any]
    files: dict[str, File]


class DamagedCheckpoint(Exception):
    """A directory differs from its manifest, or has none; the message names files and faults."""


# ---- Write ----------------------------------------------------------------------------------------------


def write(directory: Path, about: dict[str, Any]) -> None:
    """Digest every file under `directory`, write the manifest, and flush all of it to the disk.

    Call it when nothing else writes there any more, before the directory gets the name that readers trust.
    """
    # 1. Digest and flush the content of every file.
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {path.relative_to(directory).as_posix(): _digest(path, flush=True) for path in paths}
    # 2. Write and flush the manifest.
    with (directory / NAME).open("w", encoding="utf-8") as stream:
        stream.write(_render(Manifest(about, files)))
        stream.flush()
        os.fsync(stream.fileno())
    # 3. Flush the directories: without it a loss of power may leave a file's content without its name.
    for path in (*directory.rglob("*"), directory):
        if path.is_dir():
            flush_directory(path)


def flush_directory(directory: Path) -> None:
    """Make the names in `directory` (files created, renamed, deleted) survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _render(manifest: Manifest) -> str:
    content = {
        "about": manifest.about,
        "files": {name: file._asdict() for name, file in manifest.files.items()},
    }
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": seal}, indent=1) + "\n"


def _digest(path: Path, *, flush: bool = False) -> File:
    with open_regular(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if flush:
            os.fsync(stream.fileno())
        return File(stream.tell(), digest)


# ---- Check ----------------------------------------------------------------------------------------------


def check(directory: Path) -> Manifest:
    """Return the manifest of `directory` after checking every byte of every file that it lists.

    A file that the manifest does not list is no damage: nothing in the sealed files refers to it.

    Raises:
        DamagedCheckpoint: files are missing, differ in size or digest, or cannot be read because the disk fails.
        InputError: a file cannot be read for another reason, such as a permission, which says nothing about it.
    """
    return _require(directory, lambda path, file: _size_fault(path, file) or _content_fault(path, file))


def skim(directory: Path) -> Manifest:
    """Return the manifest after checking only the sizes of the files: microseconds a file, blind to a flipped bit."""
    return _require(directory, _size_fault)


def _require(directory: Path, fault: Callable[[Path, File], str]) -> Manifest:
    manifest = _read(directory)
    found = ((name, _fault(directory / name, file, fault)) for name, file in manifest.files.items())
    faults = [f"{_shown(name)} {what}" for name, what in found if what]
    if faults:
        raise DamagedCheckpoint(
            "; ".join(faults[:3]) + (f"; and {len(faults) - 3} files more" if len(faults) > 3 else "")
        )
    return manifest


def _read(directory: Path) -> Manifest:
    path = directory / NAME
    try:
        raw = read_bounded(path)
    except OSError as error:
        raise DamagedCheckpoint(f"{NAME} {_unreadable(path, error)}") from error
    # The seal is checked by rendering again what was read: only the exact bytes that `write` wrote are intact.
    try:
        content = record_of(_Content, parse_object(raw))
        manifest = Manifest(content.about, content.files)
        intact = _render(manifest).encode() == raw
    except ValueError:
        intact = False
    if not intact:
        raise DamagedCheckpoint(f"{NAME} is not as it was written")
    if outside := [name for name in manifest.files if not _is_inside(name)]:
        raise DamagedCheckpoint(f"{NAME} names {_shown(outside[0])}, which is no file of a checkpoint")
    return manifest


class _Content(NamedTuple):
    """A manifest as it is written."""

    about: dict[str, Any]
    files: dict[str, File]
    sha256: str


def _is_inside(name: str) -> bool:
    """Whether a name is such as `write` gives to a file: a path from the checkpoint on, which leads nowhere else."""
    path = PurePosixPath(name)
    return name == path.as_posix() and not path.is_absolute() and ".." not in path.parts and name != "."


def _shown(name: str) -> str:
    return printable(name, _MOST_CHARACTERS)


def _fault(path: Path, file: File, fault: Callable[[Path, File], str]) -> str:
    try:
        return fault(path, file)
    except OSError as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> str:
    """Return the fault of a file that cannot be read; InputError if the reason says nothing about the file."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if isinstance(error, OddFile) or error.errno in _LOST_FILE + _NO_FILE:
        return f"cannot be read: {error.strerror}"
    raise InputError(
        f"{path} cannot be read: {error.strerror}; make it readable, or move the checkpoint away"
    ) from error


def _size_fault(path: Path, file: File) -> str:
    size = regular(path).st_size
    return "" if size == file.bytes else f"has {size} bytes, {file.bytes} were written"


def _content_fault(path: Path, file: File) -> str:
    return "" if _digest(path).sha256 == file.sha256 else "is not as it was written (its SHA-256 differs)"
