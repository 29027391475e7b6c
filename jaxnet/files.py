"""Files in directories that others can write to: read within bounds, and replaced whole.

What lies there may be of any kind and any size. A pipe would be waited for, a device does something when it is opened,
and a file of settings may hold a gigabyte of brackets. So nothing is opened but regular files, links to them included,
and nothing is read beyond a limit.

What is written there is written under a fresh name and renamed: others see the old file or the new one, no link leads
the writing elsewhere, and nothing stays behind where it fails.
"""

import contextlib
import json
import os
import re
import secrets
import stat
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from jaxnet.errors import printable

MOST_BYTES = 64 << 20  # of a file that is read whole: the manifest of a large model has a few MB
MOST_LINE_BYTES = 16 << 20  # of a line in a log: those of a ledger have 100 bytes for each rank
_MOST_DEPTH = 64  # of lists and objects in each other; what jaxnet writes has less than ten
_NAME_CHARACTERS = 40  # of a file's name that show in the name under which it is written

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class OddFile(OSError):
    """A path leads to something that no program of ours has put there; `strerror` says what it is."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(None, what, os.fspath(path))

    def __str__(self) -> str:
        return f"{self.strerror}: {self.filename!r}"


# ---- Read -----------------------------------------------------------------------------------------------


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one, to read; never wait, as for the writer of a pipe.

    Raises OSError: `OddFile` where the path leads to something else, or can be the name of no file.
    """
    regular(path)  # before it is opened: a device may act on that
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def regular(path: Path) -> os.stat_result:
    """Return what the system says of a regular file, or of the one that a link leads to; OSError as `open_regular`."""
    try:
        found = path.stat()
    except ValueError as error:  # it holds NUL, or half a character
        raise OddFile(path, "no file can have this name") from error
    _require_regular(path, found)
    return found


def expanded(path: str | Path) -> Path:
    """The path with its `~` or `~USER` as the directory for which it stands; as it is, where there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises RuntimeError


def is_directory(path: Path) -> bool:
    """Whether there is a directory, or a link to one; False, too, where this user cannot look."""
    return os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises where a directory above may not be entered


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of up to so many bytes; OSError as `open_regular`, and where it has more."""
    with open_regular(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OddFile(path, f"it has more than {most:,} bytes")
    return content


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each whole line, from 1, and the line without its end. OSError as `read_bounded`.

    A last line without its end is one that is being written, or that a kill or a full disk has cut off.
    """
    with open_regular(path) as stream:
        number = 0
        while line := stream.readline(MOST_LINE_BYTES):
            number += 1
            if line.endswith(b"\n"):
                yield number, line[:-1]
            elif len(line) == MOST_LINE_BYTES:
                raise OddFile(path, f"line {number} has {MOST_LINE_BYTES:,} bytes or more")


def parse_json(content: str | bytes) -> Any:
    """Return what JSON says; ValueError if it is none, or if lists and objects lie in each other too deeply.

    >>> parse_json("[" * 1000 + "]" * 1000)
    Traceback (most recent call last):
    ValueError: its lists and objects lie more than 64 deep in each other
    """
    deep = ValueError(f"its lists and objects lie more than {_MOST_DEPTH} deep in each other")
    try:
        value = json.loads(content)
    except RecursionError:
        raise deep from None
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [item for outer in level for item in _items(outer)]
        if not level:
            return value
    raise deep


def _items(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inside if isinstance(item, dict | list)]


def parse_object(content: str | bytes) -> dict[str, Any]:
    """Return the JSON object that a text is; ValueError if it is anything else.

    >>> parse_object('{"step": 3}'), parse_object("[]")
    Traceback (most recent call last):
    ValueError: it holds a list, wanted an object
    """
    value = parse_json(content)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
        raise ValueError(f"it holds {kind}, wanted an object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; OSError as `read_bounded`, ValueError as `parse_object`."""
    return parse_object(read_bounded(path))


# ---- Records in JSON ------------------------------------------------------------------------------------

T = TypeVar("T", bound=tuple[Any, ...])
_MOST_WHOLE = 2**63  # of a number that is no float: NumPy and the system take no larger one


def record_of(kind: type[T], said: object) -> T:
    """Return the NamedTuple whose fields a JSON object gives; ValueError names what is missing or of another type.

    A type may be bool, int, float, str, None, a union, a sequence or a dict of such, or another NamedTuple.

    >>> Rank = typing.NamedTuple("Rank", [("rank", int), ("times", Sequence[float])])
    >>> record_of(Rank, {"rank": 3, "times": [0.5]})
    Rank(rank=3, times=[0.5])
    >>> record_of(Rank, {"rank": True, "times": []})
    Traceback (most recent call last):
    ValueError: its rank is True, wanted a whole number
    """
    if not isinstance(said, dict):
        raise ValueError(f"it has {_shown(said)}, wanted an object")
    fields = typing.get_type_hints(kind)
    defaults: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
    if unknown := [name for name in said if name not in fields]:
        raise ValueError(f"it has a field {_shown(unknown[0])}")
    if missing := [name for name in fields if name not in said and name not in defaults]:
        raise ValueError(f"it has no {missing[0]}")
    return kind(**{name: _value(name, fields[name], value) for name, value in said.items()})


def _value(name: str, kind: Any, value: Any) -> Any:
    """Return a value as a field of that type; ValueError if it is of another."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inside:
            return None
        [kind] = [of for of in inside if of is not type(None)]
        return _value(name, kind, value)
    if origin is Sequence and isinstance(value, list):
        return [_value(name, inside[0], item) for item in value]
    if kind is Any:
        return value
    if origin is dict and isinstance(value, dict):
        return {key: _value(f"{name}.{_shown(key)}", inside[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, tuple):
        return record_of(kind, value)
    number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_WHOLE
    if {int: number, float: number or isinstance(value, float)}.get(kind, type(value) is kind):
        return value
    wanted = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(kind, "a list")
    raise ValueError(f"its {name} is {_shown(value)}, wanted {'an object' if origin is dict else wanted}")


def _shown(value: object) -> str:
    return printable(repr(value), 40)


# ---- What stands at a path ------------------------------------------------------------------------------


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OddFile(path, f"it is {_kind(found)}, wanted a file")


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "something else")


# ---- Write ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: Path, *, flush: bool = True) -> Iterator[Path]:
    """Give the path of a new, empty file beside `path`; at the end, what was written there becomes `path`.

    It has the mode of the file that it replaces, or of any new file. Where the block fails, `path` stays as it was, and
    the new file is deleted.

    Args:
        path: a regular file, or nothing.
        flush: whether the content is on the disk before the old one is gone. Without it, a machine that loses its power
            may leave a file that is cut short.

    Raises:
        OSError: it cannot be written; `OddFile` if something stands there that is no regular file.
    """
    before = require_replaceable(path)
    fresh = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(6)}.fresh")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o666)
    try:
        mode = stat.S_IMODE((before or os.fstat(descriptor)).st_mode) & 0o777
        os.close(descriptor)
        yield fresh
        _finish(fresh, mode, flush=flush)
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def replace(path: Path, content: str | bytes, *, flush: bool = True) -> None:
    """Make `content` the whole of a file, in UTF-8; see `replacing`."""
    with replacing(path, flush=flush) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)


def require_replaceable(path: Path) -> os.stat_result | None:
    """Return what a regular file is, and None where there is nothing; OddFile if a path is anything else.

    A link is refused, too: to replace one such as /dev/stdout would do more than to write there.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OddFile(path, "no file can have this name") from error
    if not stat.S_ISREG(found.st_mode):
        raise OddFile(path, f"it is {_kind(found)}, wanted a file or nothing there")
    return found


def is_unfinished(name: str) -> bool:
    """Whether a file of that name is what a kill has left of one that should have replaced another."""
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.fresh", name, re.DOTALL) is not None


def _finish(fresh: Path, mode: int, *, flush: bool) -> None:
    """Give the file its mode: a library may have made it anew, for its owner alone."""
    descriptor = os.open(fresh, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
