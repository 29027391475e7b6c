"""s3:// without a network: an object store in a directory, for the tests of one process.

As in real ones an object is made whole or not at all, a name can be created by one alone, and there are no directories,
no renames and no appends. FAKE_BUCKETS is the directory. While it has a file `fails`, whatever would change an object
whose URL contains the words in it fails; an empty one fails all.
"""

import os
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.registry import _registry, known_implementations

_MARK = "object-"


class Unreachable(Exception):
    """No OSError: the libraries of real stores raise errors of their own."""


class FakeBuckets(AbstractFileSystem):
    protocol = "s3"
    cachable = False

    def find(self, path, **_):
        start = f"{path.rstrip('/')}/"
        names = (unquote(file.name.removeprefix(_MARK)) for file in _folder().glob(f"{_MARK}*"))
        return sorted(name for name in names if name.startswith(start))

    def info(self, path, **_):
        return {"name": path, "type": "file", "size": _object(path).stat().st_size}

    def cat_file(self, path, **_):
        return _object(path).read_bytes()

    def get_file(self, rpath, lpath, callback=DEFAULT_CALLBACK, **_):
        Path(lpath).write_bytes(self.cat_file(rpath))
        callback.relative_update(1)

    def pipe_file(self, path, value, mode="overwrite", **_):
        _refuse(path)
        with tempfile.NamedTemporaryFile(dir=_folder(), delete=False) as scratch:
            scratch.write(value)
        if mode == "create":
            try:
                os.link(scratch.name, _object(path))
            finally:
                os.unlink(scratch.name)  # noqa: PTH108
        else:
            os.replace(scratch.name, _object(path))  # noqa: PTH105

    def put_file(self, lpath, rpath, callback=DEFAULT_CALLBACK, **_):
        self.pipe_file(rpath, Path(lpath).read_bytes())
        callback.relative_update(1)

    def rm_file(self, path):
        _refuse(path)
        _object(path).unlink()


def _folder():
    return Path(os.environ["FAKE_BUCKETS"])


def _object(path):
    return _folder() / f"{_MARK}{quote(path, safe='')}"


def _said(name):
    try:
        return (_folder() / name).read_text()
    except FileNotFoundError:
        return None


def _refuse(path):
    words = _said("fails")
    if words is not None and words in path:
        raise Unreachable("503 Slow Down")


def fake_buckets(monkeypatch, folder):
    """In this test s3:// is an empty object store in a folder, and the mirrors of runs are there too."""
    monkeypatch.setenv("FAKE_BUCKETS", str(folder))
    monkeypatch.setenv("JAXNET_MIRROR", str(folder / "mirrors"))
    monkeypatch.setitem(_registry, "s3", FakeBuckets)


def without_library(monkeypatch, scheme):
    """In this test what speaks to that storage is not installed."""
    monkeypatch.setitem(sys.modules, known_implementations[scheme]["class"].split(".")[0], None)
    monkeypatch.delitem(_registry, scheme, raising=False)


def objects(folder, below=""):
    """The names of all objects in the buckets of this directory, and their contents."""
    found = {unquote(file.name.removeprefix(_MARK)): file.read_bytes() for file in folder.glob(f"{_MARK}*")}
    return {name: content for name, content in sorted(found.items()) if name.startswith(below)}
