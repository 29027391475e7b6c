"""Photos as a source of examples: decoded, cropped and resized when they are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxnet.data.draws import mixed
from jaxnet.data.photos.pillow import Damaged
from jaxnet.data.photos.records import PhotoRecords
from jaxnet.data.photos.views import EvaluationView, TrainingView
from jaxnet.errors import InputError


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
            except Damaged as error:
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
            except Damaged as error:
                self.records.note(candidate, name, error)
        raise AssertionError("there is always another candidate")

    def _candidates(self, row: int, draw: int) -> Iterator[int]:
        while True:  # `note` ends it when every record is damaged
            yield row
            draw = mixed(draw)
            row = draw % self.num_examples


def _empty(count: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((count, *shape), np.uint8), np.empty(count, np.int32)
