"""Data sets that TensorFlow Datasets (TFDS) has prepared, read without TensorFlow and without a network.

TFDS itself says where a data set is and what its features are. The examples are parsed here, because TFDS reads every
feature, copies each through NumPy, and holds the interpreter lock all the while.
"""

from __future__ import annotations

import difflib
import functools
import io
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from jaxnet.data.arrays import Arrays, ItemRows
from jaxnet.data.png import require_all_rows
from jaxnet.data.source import PILLOW_MODES, ArraySource, Blank, Source, require_labels, to_mode
from jaxnet.errors import InputError, one_line
from jaxnet.files import expanded

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_CHUNK = 1024  # examples decoded at once when a source is read into memory


@dataclass(frozen=True)
class TFDS:
    """Any data set that TFDS has prepared as ArrayRecord, of images of one size or of numbers. Nothing is downloaded.

    Attributes:
        name: in TFDS's notation: 'cifar10', 'name/config' or 'name:1.2.3'.
        data_dir: where the prepared data sets are; None means $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        train_split: the split that 'train' opens, in TFDS's notation: 'train', 'train[:90%]', 'train+validation', ...
        test_split: the split that 'test' opens.
        image_key: the feature that is the image: uint8 [H, W, C].
        label_key: the feature that is the label: a ClassLabel.
        in_memory_bytes: a split whose decoded images take no more than this is decoded once, into memory;
            a larger one is read from disk during training.
        features: the features that an example has instead of an image and a label, for tasks other than
            `ImageClassification`: numbers, of one shape each.
    """

    name: str
    data_dir: str | None = None
    train_split: str = "train"
    test_split: str = "test"
    image_key: str = "image"
    label_key: str = "label"
    in_memory_bytes: int = 2**30
    features: tuple[str, ...] = ()

    def load(self, split: str) -> Source:
        """Open 'train', 'test', or a split in TFDS's notation such as 'validation' or 'train[90%:]'.

        Raises:
            InputError: it is absent or has another form; the message says where it was looked for and how to get it.
        """
        builder = find_builder(self.name, data_directory(self.data_dir))
        require_prepared(self.name, builder)
        named = {"train": self.train_split, "test": self.test_split}.get(split, split)
        if self.features:
            return self._numbers(builder, named)
        source = self._open(builder, named)
        size = source.num_examples * int(np.prod(source.image_shape))
        source.rows(np.arange(1))  # find missing or truncated files now, not in the middle of training
        return read_into_memory(source) if size <= self.in_memory_bytes else source

    def blank(self) -> Blank:
        """The shapes of the training examples, which TFDS knows without the data; see `open_for_plan`."""
        return blank_of(self.name, self.data_dir, self.image_key, self.label_key)

    def _open(self, builder: tfds.core.DatasetBuilder, split: str) -> RecordSource:
        import tensorflow_datasets as tfds

        image, label = self._feature(builder, self.image_key), self._feature(builder, self.label_key)
        if image.np_dtype != np.uint8 or len(image.shape) != 3 or None in image.shape:
            raise InputError(
                f"{self.name}: images must be uint8 [height, width, channels] of one fixed size, but "
                f"{self.image_key!r} is {image}"
            )
        if not isinstance(label, tfds.features.ClassLabel):
            raise InputError(f"{self.name}: {self.label_key!r} is not a ClassLabel but {label}: set label_key")
        keys = self.image_key, self.label_key
        # Decode images here: it is faster, and TFDS would print that OpenCV is not installed.
        encoded = isinstance(image, tfds.features.Image)
        try:
            records = open_examples(builder, split, keys) if encoded else builder.as_data_source(split)
        except ValueError as error:
            reason = f"{one_line(error)} Set train_split and test_split"
            raise InputError(f"{self.name} has no split {split!r}: {reason}") from error
        origin = f"the data set {self.name} in {builder.data_dir}"
        return RecordSource(records, label.num_classes, image.shape, *keys, origin, tuple(label.names))

    def _numbers(self, builder: tfds.core.DatasetBuilder, split: str) -> Source:
        kinds = {key: self._feature(builder, key) for key in self.features}
        for key, kind in kinds.items():
            if None in getattr(kind, "shape", (None,)) or np.dtype(kind.np_dtype).kind not in "biuf":
                raise InputError(f"{self.name}: features={key}: wanted numbers of one shape, and it is {kind}")
        try:
            records = builder.as_data_source(split, file_format="array_record")
        except ValueError as error:
            raise InputError(f"{self.name} has no split {split!r}: {one_line(error)}") from error
        source = ItemRows(split, _Chosen(records, self.features), threads=1)
        bytes_each = sum(int(np.prod(kind.shape)) * np.dtype(kind.np_dtype).itemsize for kind in kinds.values())
        if source.num_examples * bytes_each > self.in_memory_bytes:
            return source
        return Arrays(**{split: source.rows(np.arange(source.num_examples))}).load(split)

    def _feature(self, builder: tfds.core.DatasetBuilder, key: str) -> Any:
        features = builder.info.features
        if key not in features:
            raise InputError(f"{self.name} has no feature {key!r}: it has {', '.join(sorted(features))}")
        return features[key]


@dataclass(frozen=True)
class _Chosen:
    """Some features of each example."""

    records: Any
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = self.records[index]
        return {key: example[key] for key in self.keys}


# ---- Find a prepared data set --------------------------------------------------------------------------

# name, name/config, name:1.2.3. A namespace ('huggingface:mnist') would make TFDS ask the network.
_NAME = re.compile(r"\w+(/[\w.+-]+)?(:[\d*]+\.[\d*]+\.[\d*]+)?")


def data_directory(data_dir: str | None) -> Path:
    """Return where prepared data sets are: `data_dir`, or TFDS's own default."""
    return expanded(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_builder(name: str, root: Path) -> tfds.core.DatasetBuilder:
    """Return TFDS's builder of the data set `name` in `root`, prepared or not, without using a network."""
    if not _NAME.fullmatch(name):
        raise InputError(f"data set name {name!r} is not of the form 'name', 'name/config' or 'name:1.2.3'")
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name, data_dir=root)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        here = [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
        near = difflib.get_close_matches(re.split("[/:]", name)[0], {*known, *here})
        hint = f"; names near it: {', '.join(near)}" if near else ""
        raise InputError(f"TFDS knows no data set {name!r}, and none is prepared in {root}{hint}") from error
    except Exception as error:  # no such config or version, or an error of a parser of its files
        reason = one_line(error).rpartition('}": ')[2]  # skip the arguments that TFDS repeats
        raise InputError(f"TFDS cannot open {name!r} in {root}: {reason}") from error


def is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    """Return whether the data of `builder` are on disk."""
    return (Path(builder.data_dir) / "dataset_info.json").exists()


def require_prepared(name: str, builder: tfds.core.DatasetBuilder) -> None:
    """Raise InputError, which says how to prepare them, unless the data are on disk with random access."""
    directory = Path(builder.data_dir)
    if not is_prepared(builder):
        others = [path.name for path in directory.parent.glob("*.*.*") if path.is_dir()]
        found = f" (there is version {', '.join(sorted(others))}: ask for it as '{builder.name}:...')" if others else ""
        raise InputError(
            f"the data set {name} is not prepared in {directory}{found}. Set data_dir or TFDS_DATA_DIR to "
            f"the directory that holds it, or prepare it{_how(name, str(builder.data_dir_root))}"
        )
    formats = {file_format.value for file_format in builder.info.available_file_formats()}
    if "array_record" not in formats:
        raise InputError(
            f"the data set {name} in {directory} is prepared as {', '.join(formats)}, which has no random "
            f"access. Prepare it as array_record elsewhere, and set data_dir to that directory: "
            f"{_command(name, 'NEW_DIRECTORY')}"
        )


_TRAINING_EXAMPLES = {
    "imagenet2012": 1_281_167, "cifar10": 50_000, "cifar100": 50_000, "mnist": 60_000, "fashion_mnist": 60_000
}  # fmt: skip


def blank_of(name: str, data_dir: str | None, image_key: str, label_key: str, size: int | None = None) -> Blank:
    """The shapes of a data set's training examples, without the data.

    Args:
        name: of the data set.
        data_dir: as of `TFDS`.
        image_key: the feature that is the image.
        label_key: the feature that is the label.
        size: side of the images as they are trained on; None: their own.

    Raises:
        InputError: images have no shape of their own, or nobody knows how many there are.
    """
    builder = find_builder(name, data_directory(data_dir))
    count, features = _TRAINING_EXAMPLES.get(builder.name), dict(builder.info.features.items())
    shape = tuple(getattr(features.get(image_key), "shape", ()))
    if size is not None:
        shape = (size, size, *shape[2:])
    if count is None or len(shape) != 3 or None in shape:
        require_prepared(name, builder)
        raise InputError(f"the shapes of {name} are not known without its data")
    return Blank(count, shape, features[label_key].num_classes)


def _how(name: str, root: str) -> str:
    if name.partition(":")[0] == "imagenet2012":
        command = "jaxnet data prepare imagenet2012 --manual-dir DIRECTORY_OF_THE_TARS"
        return f" from the official archives: {command} --data-dir {root}"
    return f", with a network and jaxnet[tf] installed: {_command(name, root)}"


def _command(name: str, root: str) -> str:
    builder = f"tfds.builder({name!r}, data_dir={root!r}, file_format='array_record')"
    return f'python -c "import tensorflow_datasets as tfds; {builder}.download_and_prepare()"'


# ---- Parse examples ------------------------------------------------------------------------------------


class Serialized(Protocol):
    """What TFDS returns when it is asked for RAW_BYTES."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> bytes: ...

    def __getitems__(self, indices: list[int]) -> Sequence[bytes]: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Scalar features of serialized `tf.train.Example`s; safe in many threads.

    Attributes:
        serialized: the examples by index.
        keys: the features to read.
    """

    serialized: Serialized
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.serialized)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the features of an example, each bytes or an int; ValueError if one is missing or it is no example."""
        return self._read(self.serialized[index])

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return these examples: for small ones, 20 times as fast as one at a time."""
        return [self._read(serialized) for serialized in self.serialized.__getitems__(indices)]

    def _read(self, serialized: bytes) -> dict[str, Any]:
        features = self._parsed(serialized).features.feature
        return {key: _scalar(key, features[key]) for key in self.keys}

    @functools.cached_property
    def _parsed(self) -> Callable[[bytes], Any]:
        from google.protobuf.message import DecodeError
        from tensorflow_datasets.proto import tf_example_pb2  # here, because it takes seconds to import

        def parsed(serialized: bytes) -> Any:
            try:
                return tf_example_pb2.Example.FromString(serialized)
            except DecodeError as error:
                raise ValueError("it is no tf.train.Example") from error

        return parsed


def open_examples(builder: tfds.core.DatasetBuilder, split: str, keys: tuple[str, ...]) -> Examples:
    """Return the examples of a split that is prepared as ArrayRecord; ValueError if there is no such split."""
    from tensorflow_datasets import decode

    raw = decode.DeserializeMethod.RAW_BYTES
    return Examples(builder.as_data_source(split, deserialize_method=raw, file_format="array_record"), keys)


def _scalar(key: str, feature: Any) -> bytes | int:
    values = feature.bytes_list.value or feature.int64_list.value
    if len(values) != 1:
        raise ValueError(f"its feature {key!r} has {len(values)} values instead of one")
    return values[0]


# ---- A source on disk ----------------------------------------------------------------------------------


class RecordsReader(Protocol):
    """What `RecordSource` needs of examples: how many there are, and several by their indices."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, eq=False)
class RecordSource:
    """A source on disk: reads and decodes each example when it is asked for; safe in many threads.

    An image in `records` is either its encoded bytes (PNG, JPEG, ...) or a decoded uint8 array. `origin` names the
    data set in errors.
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
        except (RuntimeError, OSError, ValueError, zlib.error) as error:
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
            require_all_rows(picture, value)
            return np.asarray(to_mode(picture, PILLOW_MODES[self.image_shape[-1]])).reshape(self.image_shape)


def read_into_memory(source: RecordSource) -> ArraySource:
    """Decode all of `source` once."""
    image = np.empty((source.num_examples, *source.image_shape), np.uint8)
    label = np.empty(source.num_examples, np.int32)
    for start in range(0, source.num_examples, _CHUNK):
        part = slice(start, min(start + _CHUNK, source.num_examples))
        rows = source.rows(np.arange(part.start, part.stop))
        image[part], label[part] = rows["image"], rows["label"]
    return ArraySource(image, label, source.num_classes, tuple(getattr(source, "class_names", ())))
