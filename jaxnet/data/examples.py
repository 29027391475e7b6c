"""Examples as TFDS writes them, of which only what is asked for is read.

TFDS reads every feature, copies each through NumPy, and holds the interpreter lock all the while: other threads that
decode photos wait for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tensorflow_datasets as tfds


class Serialized(Protocol):
    """What TFDS gives where it is asked for RAW_BYTES."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> bytes: ...

    def __getitems__(self, indices: list[int]) -> Sequence[bytes]: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Scalar features of serialized `tf.train.Example`s; safe in many threads.

    Attributes:
        serialized: by the numbers of the examples.
        keys: the features that are read.
    """

    serialized: Serialized
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.serialized)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the features of an example, bytes or an int each; ValueError if one is missing or it is no example."""
        return self._read(self.serialized[index])

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return these examples: for small ones a twentieth of the time of each by itself."""
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
    """Examples of a split that is prepared as ArrayRecord; ValueError if there is no such split."""
    from tensorflow_datasets import decode

    raw = decode.DeserializeMethod.RAW_BYTES
    return Examples(builder.as_data_source(split, deserialize_method=raw, file_format="array_record"), keys)


def _scalar(key: str, feature: Any) -> bytes | int:
    values = feature.bytes_list.value or feature.int64_list.value
    if len(values) != 1:
        raise ValueError(f"its feature {key!r} has {len(values)} values instead of one")
    return values[0]
