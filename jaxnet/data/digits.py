"""Handwritten digits that come with the package: a real data set that needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxnet.data.source import ArraySource, require_split

_NUM_TRAIN = 1437


@dataclass(frozen=True)
class Digits:
    """1797 grey images of handwritten digits, 8x8, 10 classes: 1437 for training, 360 for testing.

    They are the test set of UCI's Optical Recognition of Handwritten Digits, taken from scikit-learn; its
    values 0 .. 16 become `round(value * 255 / 16)`. The split is random and fixed, not disjoint by writer.
    Source, licence and the script that made the file: `digits.md` beside this module.

    >>> train, test = Digits().load('train'), Digits().load('test')
    >>> train.num_examples, test.num_examples, train.image_shape, train.num_classes
    (1437, 360, (8, 8, 1), 10)
    """

    def load(self, split: str) -> ArraySource:
        """Return the split 'train' or 'test', in memory."""
        require_split(split)
        with np.load(Path(__file__).with_name("digits.npz")) as file:
            image, label, order = file["image"], file["label"], file["order"]
        rows = order[:_NUM_TRAIN] if split == "train" else order[_NUM_TRAIN:]
        pixels = np.round(image[rows, :, :, None] * (255 / 16)).astype(np.uint8)
        return ArraySource(pixels, label[rows].astype(np.int32), num_classes=10, class_names=tuple("0123456789"))
