"""What a stranger puts where a file is expected is named, never waited for, and never written through."""

import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxnet import files
from jaxnet.files import (
    OddFile,
    is_unfinished,
    parse_object,
    read_bounded,
    read_lines,
    read_object,
    record_of,
    replace,
    replacing,
    require_replaceable,
)
from support.disks import files_no_longer_than
from support.odd_files import DEEP, ODD, endless, loop, pipe

# ---- Read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("read", [read_object, lambda path: list(read_lines(path))], ids=["whole", "by lines"])
def test_what_is_no_file_of_bounded_size_is_an_error_of_the_system(make, read, tmp_path):
    make(tmp_path / "odd")
    with pytest.raises(OSError, match=r".") as caught:
        read(tmp_path / "odd")
    assert caught.value.strerror
    assert caught.value.errno == errno.ELOOP if make is loop else isinstance(caught.value, OddFile)


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
def test_a_name_that_no_file_can_have(name, tmp_path):
    for act in (read_bounded, require_replaceable):
        with pytest.raises(OddFile, match="no file can have this name"):
            act(tmp_path / name)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    """Between the look and the opening."""
    (tmp_path / "file").touch()
    found = (tmp_path / "file").stat()
    (tmp_path / "file").unlink()
    pipe(tmp_path / "file")
    monkeypatch.setattr(files, "regular", lambda path: found)
    with pytest.raises(OddFile, match="it is a pipe, wanted a file"):
        read_bounded(tmp_path / "file")


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "file").write_text('{"a": 1}')
    (tmp_path / "link").symlink_to("file")
    assert read_object(tmp_path / "link") == {"a": 1}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '"text"', DEEP, '{"a":' * 70 + "1" + "}" * 70, "\udcff", '{"a": ' + "9" * 5000]
)
def test_what_is_no_object_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_object(text.encode(errors="surrogateescape"))


def test_half_a_line_at_the_end_is_no_line(tmp_path):
    (tmp_path / "log").write_bytes(b"one\n\ntwo\nhal")
    assert list(read_lines(tmp_path / "log")) == [(1, b"one"), (2, b""), (3, b"two")]


class Part(NamedTuple):
    number: int
    share: float | None = None


class Whole(NamedTuple):
    name: str
    on: bool
    parts: Sequence[Part]
    by_name: dict[str, float]


GOOD = {"name": "a", "on": True, "parts": [{"number": 1}, {"number": 2, "share": 3}], "by_name": {"x": 0.5}}


def test_a_record_is_made_of_what_it_was_written_as():
    assert record_of(Whole, GOOD) == Whole("a", True, [Part(1), Part(2, 3)], {"x": 0.5})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": 3}, "its name is 3, wanted a text"),
        ({"on": 1}, "its on is 1, wanted true or false"),
        ({"parts": {}}, r"its parts is {}, wanted a list"),
        ({"parts": [3]}, "it has 3, wanted an object"),
        ({"parts": [{}]}, "it has no number"),
        ({"parts": [{"number": 1.5}]}, "its number is 1.5, wanted a whole number"),
        ({"parts": [{"number": 2**63}]}, "its number is 9223372036854775808, wanted a whole number"),
        ({"parts": [{"number": 1, "share": "x" * 99}]}, r"its share is 'x+\.\.\. \(101 characters\), wanted a number"),
        ({"by_name": []}, "its by_name is .., wanted an object"),
        ({"by_name": {"\x1b": None}}, r"its by_name.'\\x1b' is None, wanted a number"),
        ({"other": 1}, "it has a field 'other'"),
    ],
)
def test_a_record_of_other_types_is_refused(changed, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        record_of(Whole, {**GOOD, **changed})


# ---- Write -----------------------------------------------------------------------------------------------


def a_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make a device")


def a_link_to_a_victim(path):
    (path.parent / "victim").write_text("precious")
    path.symlink_to("victim")


@pytest.mark.parametrize("make", [*(make for make in ODD if make is not endless), a_device, a_link_to_a_victim])
def test_only_a_file_is_replaced(make, tmp_path):
    make(tmp_path / "out")
    before = (tmp_path / "out").lstat()
    with pytest.raises(OddFile, match=r"it is a .*, wanted a file or nothing there"):
        replace(tmp_path / "out", "new")
    after = (tmp_path / "out").lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "victim"}


def test_no_name_is_foreseen_and_no_link_is_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("precious")
    names = [f".out.{number:012x}.fresh" for number in (1, 2)]
    (tmp_path / names[0]).symlink_to("victim")
    numbers = iter((1, 2))
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
    with pytest.raises(FileExistsError):
        replace(tmp_path / "out", "new")
    replace(tmp_path / "out", "new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert all(map(is_unfinished, names))
    monkeypatch.undo()
    seen = set()
    for _ in range(2):
        with replacing(tmp_path / "out") as fresh:
            seen.add(fresh.name)
    assert len(seen) == 2


@pytest.mark.parametrize("fails", ["full disk", "the block", "the rename"])
def test_what_fails_leaves_the_old_file_and_nothing_else(fails, tmp_path, monkeypatch):
    replace(tmp_path / "out", "old")
    if fails == "full disk":
        with files_no_longer_than(2), pytest.raises(OSError, match="File too large"):
            replace(tmp_path / "out", "new text")
    elif fails == "the block":
        with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "out"):
            raise KeyboardInterrupt
    else:
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(OSError, match="no"):
            replace(tmp_path / "out", "new text")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


@pytest.mark.parametrize(("mask", "fresh"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_modes_are_those_of_a_plain_file(mask, fresh, tmp_path):
    before = os.umask(mask)
    try:
        replace(tmp_path / "new", "")
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o640)
        replace(tmp_path / "old", "")
        with replacing(tmp_path / "again") as made:  # as a library that makes the file anew
            made.unlink()
            os.close(os.open(made, os.O_CREAT | os.O_EXCL, 0o600))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"new": fresh, "old": 0o640, "again": fresh}


def test_a_name_of_any_length_is_replaced(tmp_path):
    for name in ("x" * 255, "\u00e4" * 127):
        replace(tmp_path / name, json.dumps(name))
        assert parse_object(f'{{"name": {(tmp_path / name).read_text()}}}') == {"name": name}
