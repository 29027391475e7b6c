"""A folder of pictures as a data set, read file by file: `ImageFolder`."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxnet.data.photos.datasets import PhotoDataset
from jaxnet.data.photos.decoding import DamagedImage
from jaxnet.data.photos.source import EncodedPhotos
from jaxnet.errors import InputError, one_line
from jaxnet.files import expanded

_log = logging.getLogger(__name__)

_SUFFIXES = (".jpg", ".jpeg", ".png")
_TEST_SPLITS = ("test", "val", "validation")
_LAYOUT = (
    "wanted ROOT/train/CLASS/*.jpg and ROOT/test/CLASS/*.jpg; move the pictures, or set root, train_split or test_split"
)


@dataclass(frozen=True)
class ImageFolder(PhotoDataset):
    """Class folders of JPEG and PNG pictures of any sizes: ROOT/train/CLASS/*.jpg and ROOT/test/CLASS/*.jpg.

    The classes are the folders of the training split, sorted by name. As in torchvision, the pictures of a class may
    lie in folders within it, links are followed, and files of other kinds are left out; a warning counts them. What
    begins with a dot is hidden. Names are sorted by their bytes, so the order is the same on every host. Pictures are
    turned upright as their EXIF data say.

    Attributes, besides those of `PhotoDataset`:
        root: the folder of the splits; '~' is your home.
        train_split: the folder in it that 'train' opens.
        test_split: the folder that 'test' opens. None: the first that is there of 'test', 'val' and 'validation'.
    """

    root: str
    train_split: str = "train"
    test_split: str | None = None

    def encoded(self, split: str) -> EncodedPhotos:
        """List the pictures of 'train', of 'test', or of any other folder in `root`."""
        with _listing():
            train, folder = self._folder("train"), self._folder(split)
            names, present = _class_folders(train), _class_folders(folder)
            if foreign := [name for name in present if name not in names]:
                raise InputError(
                    f"{folder / foreign[0]} is a class without training pictures: {train} has {_some(names)}; rename "
                    "or remove it, or add a folder of that name there"
                )
            return _pictures(folder, names, present)

    def _folder(self, split: str) -> Path:
        root = expanded(self.root)
        if not root.is_dir():
            raise InputError(f"there is no folder {root}: {_LAYOUT}")
        if split not in ("train", "test") and split == self._name(root, "test"):
            raise InputError(
                f"{root / split} holds the test pictures, which choose nothing: set data.test_split to another folder, "
                "or validation to a part of the training pictures such as 0.1"
            )
        folder = root / self._name(root, split)
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}, {root} holds {_held(root)}: {_LAYOUT}")
        return folder

    def _name(self, root: Path, split: str) -> str:
        if split == "train":
            return self.train_split
        if split != "test":
            return split
        return self.test_split or next((name for name in _TEST_SPLITS if (root / name).is_dir()), split)


# ---- Files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """The pictures of one split, each a file that is read when it is asked for; see `EncodedPhotos`.

    Paths are held as bytes, one after the other: a million strings of Python would take several times the memory.

    Attributes:
        folder: of the split.
        class_names: the names of the class folders; a label is a place among them.
        paths: of all pictures, each from its class folder on.
        starts: int64 [n + 1]: where each path starts, and the end of the last.
        label: int32 [n].
    """

    folder: Path
    class_names: tuple[str, ...]
    paths: bytes = field(repr=False)
    starts: np.ndarray = field(repr=False)
    label: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.label)

    @property
    def num_classes(self) -> int:
        """How many class folders training has."""
        return len(self.class_names)

    @property
    def remedy(self) -> str:
        """What to do about damaged files."""
        return "replace or remove the file"

    @property
    def upright(self) -> bool:
        """Yes, as `jaxnet predict` turns them."""
        return True

    def read(self, row: int) -> tuple[bytes, int]:
        """Return what the file of an example holds, and its label."""
        try:
            return self._path(row).read_bytes(), int(self.label[row])
        except OSError as error:
            raise DamagedImage(error.strerror or one_line(error)) from error

    def name(self, row: int) -> str:
        """Return the path of a file."""
        return str(self._path(row))

    def _path(self, row: int) -> Path:
        path = os.fsdecode(self.paths[self.starts[row] : self.starts[row + 1]])
        return self.folder / self.class_names[self.label[row]] / path


# ---- List folders ---------------------------------------------------------------------------------------


def _class_folders(folder: Path) -> tuple[str, ...]:
    names = tuple(name for name, is_folder in _contents(folder) if is_folder)
    if not names:
        raise InputError(f"{folder} has no folders of classes, it holds {_held(folder)}: {_LAYOUT}")
    return names


def _pictures(folder: Path, class_names: tuple[str, ...], present: tuple[str, ...]) -> PictureFiles:
    """List the pictures in those class folders of a split that are present."""
    paths, starts, counts, others = bytearray(), array("q", [0]), dict.fromkeys(class_names, 0), 0
    for name in present:
        for path in _files(folder / name):
            if path.lower().endswith(_SUFFIXES):
                counts[name] += 1
                paths += os.fsencode(path)
                starts.append(len(paths))
            else:
                others, other = others + 1, folder / name / path
        if not counts[name]:
            raise InputError(
                f"{folder / name} holds no pictures, it holds {_held(folder / name)}: wanted files named .jpg, .jpeg "
                "or .png; add some, or remove the folder"
            )
    if others:
        _log.warning("%d files are left out, %s among them: they are not named .jpg, .jpeg or .png", others, other)
    label = np.repeat(np.arange(len(class_names), dtype=np.int32), list(counts.values()))
    return PictureFiles(folder, class_names, bytes(paths), np.array(starts), label)


def _files(folder: Path, below: str = "", above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Yield the path of each file in and below a folder, from there."""
    about = folder.stat()
    here = about.st_dev, about.st_ino
    if here in above:
        raise InputError(f"{folder} is a link to a folder that it lies in: remove it")
    for name, is_folder in _contents(folder):
        if is_folder:
            yield from _files(folder / name, f"{below}{name}/", (*above, here))
        else:
            yield below + name


def _contents(folder: Path) -> list[tuple[str, bool]]:
    """Return the folders and files in a folder, sorted by the bytes of their names, and whether each is a folder."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir() or entry.is_file():
                found.append((entry.name, entry.is_dir()))
            elif entry.is_symlink():
                raise InputError(f"{entry.path} is a link to nothing: mend or remove it")
    return sorted(found, key=lambda entry: os.fsencode(entry[0]))


@contextmanager
def _listing() -> Iterator[None]:
    """Turn a folder that cannot be listed into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename} cannot be listed: {error.strerror}; mend or remove it") from error


def _held(folder: Path) -> str:
    return _some([name for name, _ in _contents(folder)])


def _some(names: Sequence[str]) -> str:
    """Return the first of these names, for a message.

    >>> _some(["cat", "dog", "emu", "fox", "gnu", "hen"])
    'cat, dog, emu, fox and 2 more'
    """
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more if names else "nothing"
