"""Data of your own without a class of your own: NumPy arrays by name, or anything with a length and items."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from jaxnet.data.source import RESERVED, ArraySource, Source, require_labels
from jaxnet.errors import InputError, error_text

# ---- Arrays ---------------------------------------------------------------------------------------------


class Arrays:
    """A data set of NumPy arrays by name, whose first dim is the example.

    A table is read in a line: `table = np.genfromtxt("wine.csv", delimiter=",", skip_header=1, dtype="float32")`.

    Args:
        splits: arrays of each split, by its name: `train=...`, `test=...`, and others such as `validation=...`. They
            are of any shape and of any dtype that devices have: float64 becomes float32 and int64 int32, if it loses no
            whole number. Where 'label' holds integers of one dim, they are classes from 0 on, and there are as many as
            the largest of any split says. Arrays 'image', uint8 [n, height, width, channels], and 'label' alone make
            an `ArraySource`.

    Raises:
        InputError: arrays of one split have different lengths, or none, or cannot go to a device.

    >>> numbers = np.arange(12, dtype=np.float64).reshape(4, 3)
    >>> data = Arrays(train={"features": numbers[:, :2], "target": numbers[:, 2]})
    >>> data.load("train").rows(np.array([2]))
    {'features': array([[6., 7.]], dtype=float32), 'target': array([8.], dtype=float32)}
    """

    def __init__(self, **splits: Mapping[str, Any]) -> None:
        self._splits = {split: _checked(split, arrays) for split, arrays in splits.items()}

    def __repr__(self) -> str:
        """The shapes of the arrays and a digest of all: a run is not continued with other data."""
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        digest, shown = hashlib.sha256(), []
        for split, arrays in self._splits.items():
            for name, array in arrays.items():
                text = f"{split}/{name} {array.dtype}{list(array.shape)}"
                digest.update(text.encode())
                digest.update(np.ascontiguousarray(array).data)
                shown.append(text)
        return f"Arrays({', '.join(shown)}; sha256 {digest.hexdigest()[:16]})"

    def load(self, split: str) -> Source:
        """Return a split."""
        if split not in self._splits:
            raise InputError(f"data: Arrays has no {split!r}: it has {', '.join(self._splits) or 'nothing'}; give it")
        arrays = _with_classes(self._splits[split])
        classes = self._num_classes()
        if set(arrays) == {"image", "label"} and arrays["image"].dtype == np.uint8 and arrays["image"].ndim == 4:
            return ArraySource(arrays["image"], arrays["label"], classes or 0)
        return ArrayRows(arrays) if classes is None else LabelledRows(arrays, classes)

    def _num_classes(self) -> int | None:
        labels = [_with_classes(arrays)["label"] for arrays in self._splits.values() if "label" in arrays]
        if not labels or any(label.dtype != np.int32 or label.ndim != 1 for label in labels):
            return None
        classes = max(int(label.max()) for label in labels) + 1
        for label in labels:
            require_labels(label, classes, "data: Arrays")
        return classes


def _with_classes(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with labels as int32, as classes are, if they are integers from 0 on of another dtype."""
    label = arrays.get("label")
    if label is None or label.ndim != 1 or label.dtype.kind not in "iu":
        return arrays
    fits = label.min() >= 0 and label.max() <= np.iinfo(np.int32).max
    return {**arrays, "label": label.astype(np.int32, copy=False)} if fits else arrays


def _checked(split: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not isinstance(arrays, Mapping) or not arrays:
        raise InputError(f"data: Arrays({split}=...): wanted arrays by name, such as {{'features': x, 'target': y}}")
    checked = {name: _for_devices(f"data: {split}[{name!r}]", array) for name, array in arrays.items()}
    if taken := [name for name in RESERVED if name in checked]:
        raise InputError(f"data: {split} has {', '.join(taken)}, a name of jaxnet's own; give it another")
    lengths = {name: len(array) for name, array in checked.items()}
    if len(set(lengths.values())) != 1 or not max(lengths.values()):
        raise InputError(f"data: {split} has arrays of the lengths {lengths}: wanted one length, of at least 1")
    return checked


def _for_devices(key: str, given: Any) -> np.ndarray:
    """An array with a dtype that devices have."""
    try:
        array = np.asarray(given)
    except ValueError as error:  # NumPy's, of rows of different lengths
        raise InputError(f"{key}: {error_text(error)}") from error
    if array.ndim < 1 or array.dtype.kind not in "biuf":
        got = f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{key}: wanted numbers whose first dim is the example, got {got}")
    dtype = jax.dtypes.canonicalize_dtype(array.dtype) if array.dtype.itemsize > 4 else array.dtype
    if array.dtype.kind in "iu" and dtype != array.dtype:
        wide = np.iinfo(dtype)
        if array.size and not (wide.min <= array.min() and array.max() <= wide.max):
            raise InputError(f"{key}: {array.dtype} of {array.min()} to {array.max()}, and devices take {dtype}")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError:  # a finite number would be an infinity
        largest = np.abs(array[np.isfinite(array)]).max()
        raise InputError(f"{key}: {array.dtype} of up to {largest:g}, and devices take {dtype}; scale it") from None


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """A source of arrays by name."""

    in_memory: ClassVar[bool] = True

    arrays: dict[str, np.ndarray] = field(repr=False)

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(next(iter(self.arrays.values())))

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of these examples."""
        return {name: array.take(indices, axis=0) for name, array in self.arrays.items()}


@dataclass(frozen=True, eq=False)
class LabelledRows(ArrayRows):
    """A source of arrays with a 'label' of 0 .. num_classes - 1."""

    num_classes: int


# ---- Items ----------------------------------------------------------------------------------------------


class Sequence(Protocol):
    """Anything with a length whose items are examples: dicts of arrays, numbers or lists of numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


class Items:
    """A data set of anything with a length and items, such as a Grain or a Hugging Face data set.

    An example is a dict of arrays, numbers or lists of numbers, of the same shapes for all. The order is jaxnet's, so
    give a Grain `MapDataset` before its own `shuffle` and `batch`. The random transformations of a `MapDataset` are
    functions of the index, so that a batch stays a function of (seed, step); they are the same in each epoch.

    Args:
        splits: by name: `train=...`, `test=...`.
        threads: that read items, each a whole batch at a time.

    >>> squares = [{"features": np.float32([x]), "target": np.float32(x * x)} for x in range(8)]
    >>> Items(train=squares[:6], test=squares[6:]).load("test").rows(np.array([1, 0]))
    {'features': array([[7.],
           [6.]], dtype=float32), 'target': array([49., 36.], dtype=float32)}
    """

    def __init__(self, *, threads: int = 1, **splits: Sequence) -> None:
        for split, items in splits.items():
            if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
                raise InputError(f"data: Items({split}=...) is a {type(items).__name__}: wanted a length and items")
        self._splits, self._threads = splits, threads

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}={type(items).__name__} of {len(items)}" for split, items in self._splits.items())
        return f"Items({sizes})"

    def load(self, split: str) -> Source:
        """Return a split."""
        if split not in self._splits:
            raise InputError(f"data: Items has no {split!r}: it has {', '.join(self._splits) or 'nothing'}; give it")
        return ItemRows(split, self._splits[split], self._threads)


@dataclass(frozen=True, eq=False)
class ItemRows:
    """A source of items."""

    split: str
    items: Sequence = field(repr=False)
    threads: int

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.items)

    def rows(self, indices: np.ndarray) -> dict[str, Any]:
        """Return these examples, stacked."""
        return _stacked(self.split, [(int(index), self.items[int(index)]) for index in indices])


def _stacked(split: str, given: list[tuple[int, Any]]) -> dict[str, Any]:
    items = [(index, _of_item(f"data: {split}[{index}]", item)) for index, item in given]
    first_index, first = items[0]
    wanted: Any = jax.tree.structure(first)
    for index, item in items:
        if jax.tree.structure(item) != wanted:
            raise InputError(
                f"data: {split}[{index}] has {_names(item)}, and {split}[{first_index}] {_names(first)}: wanted the "
                "same arrays in all examples"
            )

    def stack(path: Any, *leaves: Any) -> np.ndarray:
        key = f"data: {split}{jax.tree_util.keystr(path)}"
        try:
            return _for_devices(key, np.stack(leaves))
        except ValueError:  # NumPy's, of shapes that differ
            shapes = {index: np.shape(leaf) for (index, _), leaf in zip(items, leaves, strict=True)}
            odd = next(index for index, shape in shapes.items() if shape != shapes[first_index])
            raise InputError(
                f"{key} of example {odd} has the shape {shapes[odd]}, and of example {first_index} "
                f"{shapes[first_index]}; wanted one shape: pad or cut them"
            ) from None

    stacked: dict[str, Any] = jax.tree.map_with_path(stack, *(item for _, item in items))
    return stacked


def _of_item(key: str, item: Any) -> dict[str, Any]:
    """An example as a dict of arrays; a Hugging Face data set has lists of numbers in their place."""
    if not isinstance(item, Mapping):
        raise InputError(f"{key} is a {type(item).__name__}: wanted a dict of arrays by name")
    try:
        return {
            name: jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, list) else leaf, of, is_leaf=_is_table)
            for name, of in item.items()
        }
    except ValueError as error:  # NumPy's, of rows of different lengths
        raise InputError(f"{key}: {error_text(error)}") from error


def _is_table(value: Any) -> bool:
    """Whether this is a list of numbers or of such lists, as its first element says."""
    if not isinstance(value, list):
        return False
    return not value or isinstance(value[0], int | float) or _is_table(value[0])


def _names(item: dict[str, Any]) -> str:
    """The arrays of an example, in words."""
    paths = (jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(item))
    return ", ".join(paths) or "nothing"
