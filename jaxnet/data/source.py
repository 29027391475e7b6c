"""What a data set gives: random access to decoded examples, as NumPy arrays."""

from __future__ import annotations

import io
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from jaxnet.errors import InputError, one_line

# ---- Pictures of any mode as 8 bits a channel ---------------------------------------------------------


PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's name for this many channels of 8 bits


def to_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Convert to a mode of 8 bits a channel; 16 bits become 8, and transparency is dropped.

    >>> to_mode(Image.new("I;16", (1, 1), 0x1234), "L").getpixel((0, 0)) == 0x12
    True
    """
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        # Grey of 16 bits, which Pillow itself would clip at 255.
        picture = Image.fromarray((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8))
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # its palette may be transparent
    return picture if picture.mode == mode else picture.convert(mode)


# ---- Labels are numbers of classes --------------------------------------------------------------------


def require_labels(labels: np.ndarray, num_classes: int, origin: str) -> None:
    """Raise InputError, which names the origin, unless all labels are 0 .. num_classes - 1.

    A loss takes any other for no class at all: a run would train towards zero loss without a word.
    """
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= num_classes:
        raise InputError(
            f"labels of {origin} must be 0 .. {num_classes - 1} for {num_classes} classes, got {labels.min()} .. "
            f"{labels.max()}; TFDS gives -1 to what has no label, so choose a split that has labels"
        )


_SOURCE = ("num_examples", "num_classes", "image_shape", "rows")
_CHUNK = 1024  # examples decoded at once when a source is read into memory


class Source(Protocol):
    """Random access to the examples of one split of a data set."""

    @property
    def num_examples(self) -> int:
        """How many examples there are, at least 1."""

    @property
    def num_classes(self) -> int:
        """Labels are 0 .. num_classes - 1."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image; pixels are uint8."""

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return fresh arrays {'image': uint8 [n, H, W, C], 'label': int32 [n]} in the order asked for."""


@runtime_checkable
class RandomSource(Protocol):
    """A source whose examples depend on chance: `train_batches` asks for them with a random number for each."""

    def random_rows(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """As `Source.rows`, with uint64 [n] numbers that say all that chance decides.

        An 'id' in the result, int32 [n], says which examples were given, if not those asked for.
        """


class Dataset(Protocol):
    """What a config names: a frozen dataclass that opens the split 'train' or 'test'."""

    def load(self, split: str) -> Source:
        """Open one split; InputError if it cannot be had, and how to get it."""


def open_split(dataset: Dataset, split: str) -> Source:
    """`dataset.load(split)`, whose errors become one that names the data set and the line, if it is a user's own.

    Raises:
        InputError: whatever it raises, or what it gives is no source.
    """
    kind = type(dataset)
    try:
        source = dataset.load(split)
    except InputError:
        raise
    except Exception as error:
        if kind.__module__.partition(".")[0] == __name__.partition(".")[0]:
            raise  # a mistake of ours: its traceback is wanted
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"data: {kind.__qualname__}.load({split!r}) failed in line {last.lineno} of {last.filename}"
        raise InputError(f"{where}: {type(error).__name__}: {error}") from error
    if lacking := [name for name in _SOURCE if not hasattr(source, name)]:
        raise InputError(
            f"data: {kind.__qualname__}.load({split!r}) gave a {type(source).__name__} without {', '.join(lacking)}: "
            "wanted a Source, such as jaxnet.data.ArraySource"
        )
    return source


def require_split(split: str) -> None:
    """Raise InputError unless `split` is 'train' or 'test'."""
    if split not in ("train", "test"):
        raise InputError(f"split {split!r} does not exist: use 'train' or 'test'")


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A source held in memory.

    >>> pair = ArraySource(np.zeros((2, 8, 8, 1), np.uint8), np.array([3, 4], np.int32), num_classes=10)
    >>> pair.rows(np.array([1, 1, 0]))['label']
    array([4, 4, 3], dtype=int32)
    """

    image: np.ndarray = field(repr=False)
    label: np.ndarray = field(repr=False)
    num_classes: int
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        image, label = self.image, self.label
        if image.dtype != np.uint8 or image.ndim != 4 or not len(image):
            raise InputError(f"images must be uint8 [n, H, W, C] with n > 0, got {image.dtype} {image.shape}")
        if label.dtype != np.int32 or label.shape != image.shape[:1]:
            raise InputError(f"labels must be int32 [{len(image)}], got {label.dtype} {label.shape}")
        require_labels(label, self.num_classes, "the data set")

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.image)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        _, height, width, channels = self.image.shape
        return height, width, channels

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of these examples."""
        # take() gathers rows of an image's size half as fast again as image[indices] does.
        return {"image": self.image.take(indices, axis=0), "label": self.label.take(indices)}


class RecordsReader(Protocol):
    """What is needed of examples: how many there are, and many by their indices."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, eq=False)
class RecordSource:
    """A source on disk: reads and decodes each example when it is asked for; safe in many threads.

    An image in `records` is either its encoded bytes (PNG, JPEG, ...) or a decoded uint8 array. `origin` is
    what to call it when a record turns out to be damaged.
    """

    records: RecordsReader
    num_classes: int
    image_shape: tuple[int, int, int]
    image_key: str = "image"
    label_key: str = "label"
    origin: str = "the data set"
    class_names: tuple[str, ...] = ()

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.records)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Read and decode these examples; InputError if that fails."""
        try:
            return self._read(indices)
        except (RuntimeError, OSError, ValueError) as error:
            reason = one_line(error)
            raise InputError(
                f"{self.origin} is damaged: {reason}. Remove its directory and prepare it again"
            ) from error

    def _read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        examples = self.records.__getitems__(indices.tolist())
        image = np.empty((len(examples), *self.image_shape), np.uint8)
        for pixels, example in zip(image, examples, strict=True):
            pixels[...] = self._decoded(example[self.image_key])
        label = np.array([example[self.label_key] for example in examples], np.int32)
        require_labels(label, self.num_classes, self.origin)
        return {"image": image, "label": label}

    def _decoded(self, value: bytes | np.ndarray) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return value
        with Image.open(io.BytesIO(value)) as picture:
            return np.asarray(to_mode(picture, PILLOW_MODES[self.image_shape[-1]])).reshape(self.image_shape)


def read_into_memory(source: Source) -> ArraySource:
    """Decode all of `source` once."""
    image = np.empty((source.num_examples, *source.image_shape), np.uint8)
    label = np.empty(source.num_examples, np.int32)
    for start in range(0, source.num_examples, _CHUNK):
        part = slice(start, min(start + _CHUNK, source.num_examples))
        rows = source.rows(np.arange(part.start, part.stop))
        image[part], label[part] = rows["image"], rows["label"]
    return ArraySource(image, label, source.num_classes, tuple(getattr(source, "class_names", ())))


# ---- What a network takes and gives, as far as its data set says so: saved with what is trained, for who uses it later


@dataclass(frozen=True)
class Inputs:
    """Images and classes of a data set.

    Attributes:
        image_shape: (height, width, channels) of the uint8 images.
        num_classes: labels are 0 .. num_classes - 1.
        class_names: one a class; empty where the data set has none.
        resize: the shorter side to which a picture is brought before its centre is cut out; None: a picture is
            resized to height and width as a whole.

    >>> Inputs((8, 8, 1), 2, ("no", "yes")).name_of(1), Inputs((8, 8, 1), 2).name_of(1)
    ('yes', '1')
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...] = ()
    resize: int | None = None

    def __post_init__(self) -> None:
        sizes = [*self.image_shape, self.num_classes, self.resize or 1]
        if len(self.image_shape) != 3 or not all(type(size) is int and size > 0 for size in sizes):
            raise InputError(f"wanted (height, width, channels) and a number of classes, got {self}")
        if len(self.class_names) not in (0, self.num_classes):
            raise InputError(f"there are {len(self.class_names)} names of classes for {self.num_classes} classes")

    def name_of(self, label: int) -> str:
        """The class of that label, or the label itself; a network may have more outputs than there are classes."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Inputs:
        """The same again; raises InputError unless they are what `as_json` gives."""
        try:
            tuples = {key: tuple(values[key]) for key in ("image_shape", "class_names")}
            return cls(**{**values, **tuples})
        except (KeyError, TypeError) as error:
            raise InputError(f"these are not the inputs of a network: {values!r:.200}") from error


def inputs_of(source: Source) -> Inputs:
    """What a network that is tested on `source` takes; a source may have `class_names` and `resize` besides.

    >>> from jaxnet.data import Digits
    >>> inputs_of(Digits().load("test")).class_names[:3]
    ('0', '1', '2')
    """
    return Inputs(
        image_shape=source.image_shape,
        num_classes=source.num_classes,
        class_names=tuple(getattr(source, "class_names", ())),
        resize=getattr(source, "resize", None),
    )
