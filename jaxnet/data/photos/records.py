"""The encoded photos of one split, and the account of those that are damaged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxnet.data.labels import require_labels
from jaxnet.data.photos.pillow import Damaged
from jaxnet.errors import InputError, one_line

_log = logging.getLogger(__name__)


class Records(Protocol):
    """What is needed of examples: how many there are, and each by its index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...


def read_example(records: Records, row: int) -> dict[str, Any]:
    """An example; Damaged if it cannot be read. Large ones are read faster one at a time than many together."""
    try:
        return records[row]
    except (RuntimeError, OSError, ValueError, IndexError) as error:  # as ArrayRecord and the parser raise them
        raise Damaged(one_line(error)) from error


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

    records: Records
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

    def note(self, row: int, name: str, reason: Damaged) -> None:
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
