"""Object storage: which paths mean it, and its objects by name. fsspec speaks to it, with gcsfs or s3fs installed.

An object is there whole or not at all; it is never renamed and never grows. If several programs create the same name at
once, one of them gets it: a lock needs that.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from jaxnet.errors import InputError, one_line
from jaxnet.files import MOST_BYTES, replacing

_SCHEMES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # what has to be installed, and the extra that does it
_MOST_NAME_BYTES = 255  # of a file
_OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE)
_KNOWN = "gs://BUCKET/NAME (Google Cloud Storage), s3://BUCKET/NAME (Amazon S3), or a directory"


def remote_url(path: str | Path) -> str | None:
    """The URL of a place in object storage, without a slash at its end; None for a path of this machine.

    A Path makes one slash of two, so one is enough. Raises InputError for URLs of other kinds, and without a name.

    >>> remote_url(Path("s3://bucket/run")), remote_url("gs://bucket/runs/a/"), remote_url("runs/a")
    ('s3://bucket/run', 'gs://bucket/runs/a', None)
    """
    found = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*?)/*", str(path), re.DOTALL)
    if found is None:
        return None
    scheme, rest = found.groups()
    if scheme not in _SCHEMES:
        raise InputError(f"{scheme}://{rest}: runs are not kept at {scheme}://; wanted {_KNOWN}")
    if "/" not in rest:
        raise InputError(f"{scheme}://{rest}: a bucket alone is no place for a run; wanted {_KNOWN}")
    return f"{scheme}://{rest}"


class StoreFailed(OSError):
    """Object storage did not do what it was asked for; `strerror` says why."""

    def __init__(self, url: str, error: BaseException) -> None:
        super().__init__(None, one_line(error) or type(error).__name__, url)


class Store:
    """The objects below a URL, by names such as `checkpoints/000200/manifest.json`.

    Whatever goes wrong is a `StoreFailed`, but for a name to be read that is not there (FileNotFoundError), and one to
    be created that is (FileExistsError). Raises InputError when what speaks to this kind of storage is not installed.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        scheme, self._root = url.split("://", 1)
        package, extra = _SCHEMES[scheme]
        try:
            with self._one_error():
                # What was listed a moment ago may have changed since, by another run.
                self._fs: Any = fsspec.filesystem(scheme, use_listings_cache=False)
        except StoreFailed as error:
            if isinstance(error.__cause__, ImportError):
                raise InputError(
                    f"{url} needs {package}, which is not installed: pip install 'jaxnet[{extra}]'"
                ) from error
            raise

    def names(self, folder: str) -> list[str]:
        """The names of all objects in a folder, from it on: those of `lock` are such as `000003.json`."""
        place = f"{self._root}/{folder}"
        with self._one_error():
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(place)
            except FileNotFoundError:
                return []
        return sorted(_inside(str(path).removeprefix(f"{place}/")) for path in found if str(path) != place)

    def read(self, name: str) -> bytes:
        """What an object holds; StoreFailed if that is more than a file that is read whole may have."""
        with self._one_error(FileNotFoundError):
            size = self._fs.info(self._path(name))["size"]
            if size is not None and size > MOST_BYTES:
                raise ValueError(f"{name} has {size:,} bytes, wanted {MOST_BYTES:,} or less; delete it")
            return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Make an object, or replace it."""
        with self._one_error():
            self._fs.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> None:
        """Make an object if there is none of that name; else FileExistsError, also for all but one of those at once."""
        with self._one_error(FileExistsError):
            self._fs.pipe_file(self._path(name), content, mode="create")

    def check(self, name: str) -> None:
        """Raise StoreFailed if objects cannot be made, replaced, listed, read and deleted here.

        And if two programs could both create `name`, which is that of an object in a folder.
        """
        self.create(name, b"1")
        try:
            self.create(name, b"2")
            raise StoreFailed(self.url, ValueError("two programs can create the same object, so no lock would hold"))
        except FileExistsError:
            self.write(name, b"3")
            folder, _, last = name.partition("/")
            if last not in self.names(folder) or self.read(name) != b"3":
                raise StoreFailed(self.url, ValueError("what was written is not what is read")) from None
        finally:
            self.delete([name])

    def send(self, path: Path, name: str, moved: Callable[[], None] = lambda: None) -> None:
        """Make an object of a file, or replace it; `moved` is called as it gets on."""
        with self._one_error():
            self._fs.put_file(str(path), self._path(name), callback=_told(moved))
        moved()

    def fetch(self, name: str, path: Path) -> None:
        """Make a file of an object, whole or not at all; its folder too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, flush=False) as fresh, self._one_error(FileNotFoundError):  # what it is, digests will say
            self._fs.get_file(self._path(name), str(fresh))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, one after the other; those that are not there do not matter."""
        for name in names:
            with self._one_error(FileNotFoundError), contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _one_error(self, *passed: type[OSError]) -> Iterator[None]:
        """Make what the libraries of all kinds of storage raise a StoreFailed, but for the errors `passed`.

        And for those of this machine's disk, such as a full one, which no store answers.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, passed) or (isinstance(error, OSError) and error.errno in _OF_THIS_MACHINE):
                raise
            raise StoreFailed(self.url, error) from error


def _told(moved: Callable[[], None]) -> Any:
    """What fsspec calls after each part of a transfer."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"moved": lambda size, value, **_: moved()})


def _inside(name: str) -> str:
    """The name, if a file of that name lies below the folder that it is fetched into; else InputError."""
    try:
        longest = max(len(os.fsencode(part)) for part in name.split("/"))
    except UnicodeEncodeError:  # it holds half a character
        longest = _MOST_NAME_BYTES + 1
    if ".." in PurePosixPath(name).parts or name.startswith("/") or "\0" in name or longest > _MOST_NAME_BYTES:
        raise InputError(f"an object is called {name!r:.300}, which no run has written; delete it")
    return name
