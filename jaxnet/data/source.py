"""What a data set is: random access to decoded examples, as NumPy arrays.

A config names a `Dataset`; its `load` opens a split as a `Source`. `ArraySource` is the simplest source, and any object
with the same attributes is one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from PIL import Image

from jaxnet.errors import InputError, failure, shown, users_code, users_line

# ---- Protocols ------------------------------------------------------------------------------------------


class Source(Protocol):
    """Random access to the examples of one split of a data set.

    One of images in classes also has `image_shape`, (height, width, channels) of its uint8 images, and `num_classes`:
    labels are 0 .. num_classes - 1.
    """

    @property
    def num_examples(self) -> int:
        """How many examples there are, at least 1."""

    def rows(self, indices: np.ndarray) -> dict[str, Any]:
        """Return fresh arrays by name, each [n, ...], of these examples in the order asked for.

        Such as {'image': uint8 [n, H, W, C], 'label': int32 [n]}. Shapes and dtypes are those of every example.
        """


@runtime_checkable
class RandomSource(Protocol):
    """A source whose training examples are random: `train_batches` gives it a random number for each example."""

    def random_rows(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Return examples as `Source.rows` does, where `draws`, uint64 [n], decides everything random about each.

        An 'id' in the result, int32 [n], names the examples that were given in place of those asked for.
        """


@runtime_checkable
class Overlapping(Protocol):
    """A source whose training examples may hold parts of others, as windows of a text do."""

    def hold_out(self, count: int) -> tuple[Source, Source]:
        """Return a source without `count` of the examples, of which its training sees nothing, and one of these."""


@runtime_checkable
class Evaluated(Protocol):
    """A source that shows training other examples than a test shows."""

    def evaluated(self) -> Source:
        """Return the same examples as a test shows them."""


@runtime_checkable
class Part(Protocol):
    """A source of some examples of another one."""

    def rows_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows, int32 [n], that these examples have in the other one."""


class Dataset(Protocol):
    """What a config names: a frozen dataclass that opens the split 'train' or 'test'."""

    def load(self, split: str) -> Source:
        """Open one split; InputError, which says how to get it, if it cannot be opened."""


# ---- Open a split ---------------------------------------------------------------------------------------

_SOURCE = ("num_examples", "rows")


def open_split(dataset: Dataset, split: str) -> Source:
    """Return `dataset.load(split)`; an error in a user's own data set becomes one that names it and the line.

    Raises:
        InputError: `load` raised it, or failed in a user's code, or returned something that is no source.
    """
    called = f"data: {type(dataset).__qualname__}.load({split!r})"
    try:
        source = dataset.load(split)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if type(dataset).__module__.partition(".")[0] == __name__.partition(".")[0] and not users_line(error):
            raise  # a bug in jaxnet: show its traceback
        raise failure(called, error) from error
    with users_code(f"{called}: what looks up {', '.join(_SOURCE)} of its source"):
        lacking = [name for name in _SOURCE if not hasattr(source, name)]
    if lacking:
        raise InputError(
            f"{called} gave a {type(source).__name__} without {', '.join(lacking)}: "
            "wanted a Source, such as jaxnet.data.ArraySource"
        )
    check_source(source)
    return source


def open_for_plan(dataset: Dataset) -> tuple[Source, str]:
    """The training split, and ''; of a data set that is not on this machine one of its shapes, and why.

    A data set may have a method `blank()`, which gives a `Source` of the shapes of its training examples that needs no
    data. A plan reads no example.

    Raises:
        InputError: as `open_split`, for a data set without `blank`.
    """
    try:
        return open_split(dataset, "train"), ""
    except InputError as error:
        if not hasattr(dataset, "blank"):
            raise
        return dataset.blank(), str(error)


@dataclass(frozen=True)
class Blank:
    """A source of black images of the first class: shapes, for plans.

    Attributes:
        num_examples: how many it says it has.
        image_shape: (height, width, channels).
        num_classes: of its labels.
    """

    num_examples: int
    image_shape: tuple[int, int, int]
    num_classes: int

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Zeros."""
        return {
            "image": np.zeros((len(indices), *self.image_shape), np.uint8),
            "label": np.zeros(len(indices), np.int32),
        }


_MOST_EXAMPLES = 2**31 - 1  # rows are int32
_MOST_THREADS = 1024
_MOST_CLASSES = 10**9
_LONGEST_SIDE = 65_535  # of a JPEG file


def check_source(source: Source) -> None:
    """Refuse a source whose numbers of examples, classes or threads, or whose shape of images, can be none."""
    kind = type(source).__name__

    def number(name: str, most: int) -> None:
        with users_code(f"data: {kind}.{name}"):
            value = getattr(source, name)
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= most:
            raise InputError(f"data: {kind}.{name} is {shown(value)}: wanted a whole number, 1 to {most}")

    number("num_examples", _MOST_EXAMPLES)
    for name, most in (("num_classes", _MOST_CLASSES), ("threads", _MOST_THREADS)):
        if hasattr(source, name):
            number(name, most)
    shape = getattr(source, "image_shape", None)
    sizes = shape if isinstance(shape, tuple | list) else ()
    if shape is not None and (len(sizes) != 3 or not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes)):
        raise InputError(
            f"data: {kind}.image_shape is {shown(shape)}: wanted (height, width, channels), each at least 1"
        )


def read_rows(source: Source, indices: np.ndarray, like: dict[str, Any], draws: np.ndarray | None = None) -> Any:
    """Return the examples of these rows, random ones if there are `draws`; InputError unless they are as `like`.

    `like` has the shape and dtype of each array of one example, see `example_shapes`. So what a source of the user's
    gives is known before a program of other shapes is called with it.
    """
    name = "rows" if draws is None else "random_rows"
    called = f"data: {type(source).__name__}.{name} of {len(indices)} examples"
    with users_code(called, Exception):  # in the middle of a run it may pass: a launcher starts the job again
        rows = source.rows(indices) if draws is None else source.random_rows(indices, draws)  # type: ignore[attr-defined]
    if not isinstance(rows, dict):
        raise InputError(f"{called} gave a {type(rows).__name__}: wanted a dict of arrays by name")
    found = _leaves({key: rows[key] for key in rows if draws is None or key != "id"})
    wanted = _leaves(like)
    if found.keys() != wanted.keys():
        raise InputError(f"{called} gave {', '.join(found) or 'nothing'}: wanted {', '.join(wanted)}")
    for key, leaf in found.items():
        shape, dtype = (len(indices), *wanted[key].shape), wanted[key].dtype
        if getattr(leaf, "shape", None) != shape or not _becomes(leaf.dtype, dtype):
            raise InputError(f"{called} gave {_array_text(leaf)} as {key}: wanted {dtype}{list(shape)}")
    classes, labels = getattr(source, "num_classes", None), rows.get("label")
    if classes is not None and labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        require_labels(labels, classes, f"what {called.removeprefix('data: ')} gave")
    return rows


def check_rows(source: Source) -> None:
    """Read the first and the last example; InputError unless they are as the source says."""
    ends = np.array([0, source.num_examples - 1])
    draws = np.zeros(2, np.uint64) if isinstance(source, RandomSource) else None
    name = "rows" if draws is None else "random_rows"
    with users_code(f"data: {type(source).__name__}.{name} of the first and the last example"):
        read_rows(source, ends, example_shapes(source), draws)


def _leaves(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _becomes(given: Any, wanted: Any) -> bool:
    """Whether arrays of one dtype are of another on a device, as int64 is int32."""
    try:
        return bool(given == wanted or jax.dtypes.canonicalize_dtype(given) == wanted)
    except TypeError:  # of objects and text
        return False


def _is_wide(dtype: Any) -> bool:
    return dtype.kind not in "biufV" or bool(jax.dtypes.canonicalize_dtype(dtype) != dtype)


def _array_text(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else f"a {type(leaf).__name__}"


def example_shapes(source: Source) -> dict[str, Any]:
    """The shape and dtype of each array of one example: those of images in classes, else of the first example.

    Raises:
        InputError: the first example is no dict of arrays, or uses a name of jaxnet's.

    >>> example_shapes(ArraySource(np.zeros((2, 8, 8, 1), np.uint8), np.array([3, 4], np.int32), num_classes=10))
    {'image': ShapeDtypeStruct(shape=(8, 8, 1), dtype=uint8), 'label': ShapeDtypeStruct(shape=(), dtype=int32)}
    """
    shape = getattr(source, "image_shape", None)
    if shape is not None:
        return {"image": jax.ShapeDtypeStruct(shape, "uint8"), "label": jax.ShapeDtypeStruct((), "int32")}
    kind = type(source).__name__
    with users_code(f"data: {kind}.rows of the first example"):
        rows = source.rows(np.zeros(1, np.int64))
    if not isinstance(rows, dict):
        raise InputError(f"data: {kind}.rows gave a {type(rows).__name__}: wanted a dict of arrays by name")
    if taken := [name for name in RESERVED if name in rows]:
        raise InputError(f"data: {kind}.rows gave {', '.join(taken)}, a name of jaxnet's own; give it another")

    def of_example(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        if getattr(leaf, "shape", ())[:1] != (1,) or not _becomes(leaf.dtype, leaf.dtype) or _is_wide(leaf.dtype):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise InputError(
                f"data: {kind}.rows gave {_array_text(leaf)} as {name} of one example: wanted an array [1, ...] of "
                "numbers of at most 32 bits"
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    shapes: dict[str, Any] = jax.tree.map_with_path(of_example, rows)
    return shapes


RESERVED = ("id", "weight")
"""What jaxnet adds to the arrays of a batch: the rows of its examples and, in evaluation, 0 for padding and else 1."""


def require_split(split: str) -> None:
    """Raise InputError unless `split` is 'train' or 'test'."""
    if split not in ("train", "test"):
        raise InputError(f"split {split!r} does not exist: use 'train' or 'test'")


# ---- A source in memory ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A source held in memory.

    >>> pair = ArraySource(np.zeros((2, 8, 8, 1), np.uint8), np.array([3, 4], np.int32), num_classes=10)
    >>> pair.rows(np.array([1, 1, 0]))['label']
    array([4, 4, 3], dtype=int32)
    """

    in_memory: ClassVar[bool] = True

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
        # take() gathers rows of an image's size 1.5 times as fast as image[indices].
        return {"image": self.image.take(indices, axis=0), "label": self.label.take(indices)}


def require_labels(labels: np.ndarray, num_classes: int, origin: str) -> None:
    """Raise InputError, which names the origin, unless all labels are 0 .. num_classes - 1.

    `jax.nn.one_hot` gives any other label an all-zero target, so a run would train towards zero loss silently.
    """
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= num_classes:
        raise InputError(
            f"labels of {origin} must be 0 .. {num_classes - 1} for {num_classes} classes, got {labels.min()} .. "
            f"{labels.max()}; TFDS gives -1 to what has no label, so choose a split that has labels"
        )


# ---- What a network takes and gives ---------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """The images and classes that a network was trained on, saved with it for later use.

    Attributes:
        image_shape: (height, width, channels) of the uint8 images.
        num_classes: labels are 0 .. num_classes - 1.
        class_names: one per class; empty if the data set has none.
        resize: resize the shorter side of a picture to this, then cut out its centre; None: resize the whole picture
            to height and width.

    >>> Inputs((8, 8, 1), 2, ("no", "yes")).name_of(1), Inputs((8, 8, 1), 2).name_of(1)
    ('yes', '1')
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...] = ()
    resize: int | None = None

    def __post_init__(self) -> None:
        sizes = [*self.image_shape, self.resize or 1]
        known = len(self.image_shape) == 3 and all(type(size) is int for size in (*sizes, self.num_classes))
        if (
            not known
            or not 1 <= min(sizes) <= max(sizes) <= _LONGEST_SIDE
            or not 1 <= self.num_classes <= _MOST_CLASSES
        ):
            raise InputError(
                f"wanted (height, width, channels) of 1 to {_LONGEST_SIDE} and a number of classes, got {self}"
            )
        if len(self.class_names) not in (0, self.num_classes):
            raise InputError(f"there are {len(self.class_names)} names of classes for {self.num_classes} classes")

    def name_of(self, label: int) -> str:
        """Return the class of `label`, or the number itself: a network may have more outputs than classes."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Inputs:
        """Return the inputs that `as_json` described; InputError if `values` is anything else."""
        try:
            tuples = {key: tuple(values[key]) for key in ("image_shape", "class_names")}
            return cls(**{**values, **tuples})
        except (KeyError, TypeError) as error:
            raise InputError(f"these are not the inputs of a network: {values!r:.200}") from error


def has_classes(source: Any) -> bool:
    """Whether a source is one of images in classes; see `Source`."""
    return hasattr(source, "image_shape") and hasattr(source, "num_classes")


def inputs_of(source: Any) -> Inputs:
    """Return the inputs of a network that is tested on `source`: images in classes, perhaps with `class_names`.

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


# ---- Pixels ---------------------------------------------------------------------------------------------

PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's name for this many channels of 8 bits


def to_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Convert to a mode with 8 bits per channel; 16 bits become 8, and transparency is dropped.

    >>> to_mode(Image.new("I;16", (1, 1), 0x1234), "L").getpixel((0, 0)) == 0x12
    True
    """
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        # 16-bit grey: keep the high byte. Pillow's own conversion would clip at 255.
        picture = Image.fromarray((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8))
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # a palette may have transparent entries
    return picture if picture.mode == mode else picture.convert(mode)
