"""From the words of a command line to the files that they mean."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_SUFFIXES = (".jpg", ".jpeg", ".png")


def image_files(words: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    """Files as they are, directories as the JPEG and PNG files in and below them, sorted; '-' is the lines of `stdin`.

    Symbolic links are followed, but into no directory twice. What is not there is given too: reading it will say so.
    """
    for word in words:
        if word == "-":
            lines = (line.removesuffix("\n") for line in stdin)
            yield from image_files((line for line in lines if line not in ("", "-")), ())
        elif _is_directory(Path(word)):
            yield from _below(Path(word), set())
        else:
            yield Path(word)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _below(directory: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    about = directory.stat()
    if (about.st_dev, about.st_ino) in seen:
        return
    seen.add((about.st_dev, about.st_ino))
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208  # iterdir would begin before it fails
    except OSError:
        yield directory  # reading it will say what is wrong
        return
    for name in names:
        path = directory / name
        if _is_directory(path):
            yield from _below(path, seen)
        elif path.suffix.lower() in _SUFFIXES:
            yield path
