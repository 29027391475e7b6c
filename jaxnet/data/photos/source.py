"""Photos as a source of examples: decoded, cropped and resized when they are asked for."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxnet.data.batches import mixed
from jaxnet.data.photos.decoding import DamagedImage
from jaxnet.data.photos.views import EvaluationView, TrainingView
from jaxnet.data.source import require_labels
from jaxnet.errors import InputError, one_line

# ---- The encoded photos of one split, and the account of those that are damaged -----------------------


_log = logging.getLogger(__name__)


class ExampleReader(Protocol):
    """What is needed of examples: how many there are, and each by its index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...


def read_example(records: ExampleReader, row: int) -> dict[str, Any]:
    """An example; DamagedImage if it cannot be read. Large ones are read faster one at a time than many together."""
    try:
        return records[row]
    except (RuntimeError, OSError, ValueError, IndexError) as error:  # as ArrayRecord and the parser raise them
        raise DamagedImage(one_line(error)) from error


def file_name(example: Mapping[str, Any]) -> str:
    """Its name, where the data set has names; else nothing."""
    name: bytes = example.get("file_name", b"")
    return name.decode(errors="replace")


@dataclass(frozen=True, eq=False)
class PhotoRecords:
    """Reads the photos of one split; safe in many threads.

    Attributes:
        records: their images are encoded.
        num_classes: labels are 0 .. num_classes - 1.
        image_key: of an example.
        label_key: of an example.
        origin: what to call the data set when a record turns out to be damaged.
        max_damaged: so many damaged records may be found; one more is an error.
        damaged: the row of each damaged record found so far, and why.
        class_names: one a class, if the data set has them.
    """

    records: ExampleReader
    num_classes: int
    image_key: str = "image"
    label_key: str = "label"
    origin: str = "the data set"
    max_damaged: int = 100
    damaged: dict[int, str] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __len__(self) -> int:
        return len(self.records)

    def read(self, row: int) -> tuple[bytes, int, str]:
        """Return the encoded image, the label and the name of an example; Damaged if it cannot be read.

        InputError if the label is none of a class.
        """
        example = read_example(self.records, row)
        label = int(example[self.label_key])
        require_labels(np.array(label), self.num_classes, f"record {row} of {self.origin}")
        return example[self.image_key], label, file_name(example)

    def note(self, row: int, name: str, reason: DamagedImage) -> None:
        """Enter a damaged record in the account, and warn once; InputError if there are too many."""
        with self._lock:
            new = row not in self.damaged
            self.damaged[row] = str(reason)
            count = len(self.damaged)
        which = f"record {row}{name and f' ({name})'} of {self.origin}"
        if count > self.max_damaged or count == len(self):
            raise InputError(
                f"{which} is damaged: {reason}. It is the {count}th, and max_damaged={self.max_damaged} of "
                f"{len(self)} may be. Prepare the data set again, or raise max_damaged"
            )
        if new:
            _log.warning("%s is damaged: %s; another example takes its place (%d so far)", which, reason, count)


@dataclass(frozen=True, eq=False)
class _Photos:
    """What is the same of photos however they are seen."""

    records: PhotoRecords

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.records)

    @property
    def num_classes(self) -> int:
        """Labels are 0 .. num_classes - 1."""
        return self.records.num_classes


@dataclass(frozen=True, eq=False)
class EvaluationPhotos(_Photos):
    """Photos as evaluation sees them: no randomness, and every one of them, so a damaged one is an error."""

    view: EvaluationView
    threads: int = 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(size, size, 3)."""
        return self.view.size, self.view.size, 3

    @property
    def class_names(self) -> tuple[str, ...]:
        """One a class, if the data set has them."""
        return self.records.class_names

    @property
    def resize(self) -> int:
        """The shorter side of a photo before its centre is cut out."""
        return self.view.resize

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Read and decode these examples; InputError if one is damaged."""
        image, label = _empty(len(indices), self.image_shape)
        for place, row in enumerate(indices.tolist()):
            name = ""
            try:
                data, label[place], name = self.records.read(row)
                image[place] = self.view(data)
            except DamagedImage as error:
                raise InputError(
                    f"record {row}{name and f' ({name})'} of {self.records.origin} is damaged: {error}. Every example "
                    "counts in an evaluation: prepare the data set again"
                ) from error
        return {"image": image, "label": label}


@dataclass(frozen=True, eq=False)
class TrainingPhotos(_Photos):
    """Photos as training sees them: each a random part, which one 64-bit draw decides.

    A damaged record is replaced by another example, which the draw decides too: the same one on any number of
    processes. `damaged` counts them.
    """

    view: TrainingView
    size: int
    threads: int = 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(size, size, 3)."""
        return self.size, self.size, 3

    @property
    def damaged(self) -> dict[int, str]:
        """The rows of the damaged records that this process has met so far, and why they are damaged."""
        return self.records.damaged

    def at_size(self, size: int) -> TrainingPhotos:
        """Return the same photos in another size; the account of the damaged ones is shared."""
        return dataclasses.replace(self, size=size)

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the part in the centre of these examples, without randomness."""
        view = EvaluationView(self.size, -(-self.size * 8 // 7))  # 224 of 256, and the same in other sizes
        return EvaluationPhotos(self.records, view).rows(indices)

    def random_rows(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Read, decode and crop these examples, as the draws say; 'id' is the row of what is given."""
        image, label = _empty(len(indices), self.image_shape)
        given = np.empty(len(indices), np.int32)
        for place, (row, draw) in enumerate(zip(indices.tolist(), draws.tolist(), strict=True)):
            image[place], label[place], given[place] = self._one(row, draw)
        return {"image": image, "label": label, "id": given}

    def _one(self, row: int, draw: int) -> tuple[np.ndarray, int, int]:
        for candidate in self._candidates(row, draw):
            name = ""
            try:
                data, label, name = self.records.read(candidate)
                return self.view(data, draw, self.size), label, candidate
            except DamagedImage as error:
                self.records.note(candidate, name, error)
        raise AssertionError("there is always another candidate")

    def _candidates(self, row: int, draw: int) -> Iterator[int]:
        while True:  # `note` ends it when every record is damaged
            yield row
            draw = mixed(draw)
            row = draw % self.num_examples


def _empty(count: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((count, *shape), np.uint8), np.empty(count, np.int32)
