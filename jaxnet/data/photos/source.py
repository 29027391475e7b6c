"""Photos as a source of examples: decoded, cropped and resized when they are asked for."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxnet.data.batches import mix_bits
from jaxnet.data.photos.decoding import DamagedImage, turned_upright
from jaxnet.data.photos.views import EvaluationView, TrainingView, usual_resize
from jaxnet.data.source import require_labels
from jaxnet.errors import InputError, one_line

# ---- Encoded photos -------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)


class EncodedPhotos(Protocol):
    """The encoded photos of one split and their labels, each read when it is asked for; safe in many threads."""

    def __len__(self) -> int: ...

    @property
    def num_classes(self) -> int:
        """Labels are 0 .. num_classes - 1."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One per class, if the data set has them."""

    @property
    def remedy(self) -> str:
        """What to do about damaged photos, in errors."""

    @property
    def upright(self) -> bool:
        """Whether photos are turned as their EXIF data say."""

    def read(self, row: int) -> tuple[bytes, int]:
        """Return the encoded image and the label of an example; DamagedImage if it cannot be read."""

    def name(self, row: int) -> str:
        """Return what an example is called in errors and warnings, whether it can be read or not."""


class ExampleReader(Protocol):
    """What `PhotoRecords` needs of examples: how many there are, and each by its index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...


def read_example(records: ExampleReader, row: int) -> dict[str, Any]:
    """Return an example; DamagedImage if it cannot be read. Large ones read faster one at a time than together."""
    try:
        return records[row]
    except (RuntimeError, OSError, ValueError, IndexError) as error:  # those of ArrayRecord and of the parser
        raise DamagedImage(one_line(error)) from error


def file_name(example: Mapping[str, Any]) -> str:
    """Return the file name of an example; "" if the data set has none."""
    name: bytes = example.get("file_name", b"")
    return name.decode(errors="replace")


@dataclass(frozen=True, eq=False)
class PhotoRecords:
    """The encoded photos of one split that TFDS has prepared; see `EncodedPhotos`.

    Attributes:
        records: the examples.
        num_classes: labels are 0 .. num_classes - 1.
        image_key: the feature that is the encoded image.
        label_key: the feature that is the label.
        origin: the name of the data set in errors and warnings.
        class_names: one per class, if the data set has them.
    """

    records: ExampleReader
    num_classes: int
    image_key: str = "image"
    label_key: str = "label"
    origin: str = "the data set"
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    @property
    def remedy(self) -> str:
        """What to do about damaged records."""
        return "prepare the data set again"

    @property
    def upright(self) -> bool:
        """No: published accuracies are measured on photos as they lie."""
        return False

    def read(self, row: int) -> tuple[bytes, int]:
        """Return the encoded image and the label; InputError if the label is not a class."""
        example = read_example(self.records, row)
        label = int(example[self.label_key])
        require_labels(np.array(label), self.num_classes, f"record {row} of {self.origin}")
        return example[self.image_key], label

    def name(self, row: int) -> str:
        """Return the number of a record, its file name if it has one, and the data set."""
        try:
            name = file_name(read_example(self.records, row))
        except DamagedImage:
            name = ""
        return f"record {row}{name and f' ({name})'} of {self.origin}"


# ---- Damage ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DamageAccount:
    """The damaged photos that a process has met, within a budget; safe in many threads.

    Attributes:
        max_damaged: how many there may be; one more is an error.
        damaged: the row of each, and the reason.
    """

    max_damaged: int = 100
    damaged: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, photos: EncodedPhotos, row: int, reason: DamagedImage) -> None:
        """Record that `row` is damaged, and warn once; InputError if there are too many."""
        with self._lock:
            new = row not in self.damaged
            self.damaged[row] = str(reason)
            count = len(self.damaged)
        if count > self.max_damaged or count == len(photos):
            raise InputError(
                f"{photos.name(row)} is damaged: {reason}. It is the {count}th, and max_damaged={self.max_damaged} of "
                f"{len(photos)} may be: {photos.remedy}, or raise max_damaged"
            )
        if new:
            text = "%s is damaged: %s; another example takes its place (%d so far)"
            _log.warning(text, photos.name(row), reason, count)


# ---- Sources --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Photos:
    """What both sources share."""

    records: EncodedPhotos

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.records)

    @property
    def num_classes(self) -> int:
        """Labels are 0 .. num_classes - 1."""
        return self.records.num_classes

    def _seen(self, pixels: np.ndarray, data: bytes) -> np.ndarray:
        return turned_upright(pixels, data) if self.records.upright else pixels


@dataclass(frozen=True, eq=False)
class EvaluationPhotos(_Photos):
    """Photos as evaluation sees them: no randomness, and every example counts, so a damaged one is an error."""

    view: EvaluationView
    threads: int = 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(size, size, 3)."""
        return self.view.size, self.view.size, 3

    @property
    def class_names(self) -> tuple[str, ...]:
        """One per class, if the data set has them."""
        return self.records.class_names

    @property
    def resize(self) -> int:
        """The shorter side of a photo before its centre is cut out."""
        return self.view.resize

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Read and decode these examples; InputError if one is damaged."""
        image, label = _empty(len(indices), self.image_shape)
        for place, row in enumerate(indices.tolist()):
            try:
                data, label[place] = self.records.read(row)
                image[place] = self.view(data, turn=self.records.upright)
            except DamagedImage as error:
                raise InputError(
                    f"{self.records.name(row)} is damaged: {error}. Every example counts in an evaluation: "
                    f"{self.records.remedy}"
                ) from error
        return {"image": image, "label": label}


@dataclass(frozen=True, eq=False)
class TrainingPhotos(_Photos):
    """Photos as training sees them: a random part of each, which one 64-bit draw decides.

    A damaged photo is replaced by another example. The draw decides that too, so it is the same one on any number
    of processes.
    """

    view: TrainingView
    size: int
    test_view: EvaluationView
    threads: int = 1
    account: DamageAccount = field(default_factory=DamageAccount)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(size, size, 3)."""
        return self.size, self.size, 3

    @property
    def damaged(self) -> dict[int, str]:
        """The rows of the damaged photos that this process has met so far, and the reasons."""
        return self.account.damaged

    def at_size(self, size: int) -> TrainingPhotos:
        """Return the same photos at another size; both share the account of damaged ones."""
        return dataclasses.replace(self, size=size)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the centre of these examples, without randomness."""
        view = EvaluationView(self.size, usual_resize(self.size))
        return EvaluationPhotos(self.records, view).rows(indices)

    def evaluated(self) -> EvaluationPhotos:
        """Return the same photos as a test sees them."""
        return EvaluationPhotos(self.records, self.test_view, self.threads)

    def random_rows(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Read, decode and crop these examples as the draws decide; 'id' holds the rows that were really given."""
        image, label = _empty(len(indices), self.image_shape)
        given = np.empty(len(indices), np.int32)
        for place, (row, draw) in enumerate(zip(indices.tolist(), draws.tolist(), strict=True)):
            image[place], label[place], given[place] = self._one(row, draw)
        return {"image": image, "label": label, "id": given}

    def _one(self, row: int, draw: int) -> tuple[np.ndarray, int, int]:
        for candidate in self._candidates(row, draw):
            try:
                data, label = self.records.read(candidate)
                return self._seen(self.view(data, draw, self.size), data), label, candidate
            except DamagedImage as error:
                self.account.add(self.records, candidate, error)
        raise AssertionError("there is always another candidate")

    def _candidates(self, row: int, draw: int) -> Iterator[int]:
        while True:  # `DamageAccount.add` ends it when every photo is damaged
            yield row
            draw = mix_bits(draw)
            row = draw % self.num_examples


def _empty(count: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((count, *shape), np.uint8), np.empty(count, np.int32)
