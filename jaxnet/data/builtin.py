"""Data sets that need no download: handwritten digits, a medical table, and synthetic images of any size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxnet.data.arrays import ArrayRows
from jaxnet.data.source import ArraySource, require_split
from jaxnet.errors import InputError
from jaxnet.limits import memory_bytes

# ---- Digits ---------------------------------------------------------------------------------------------

_NUM_TRAIN = 1437


@dataclass(frozen=True)
class Digits:
    """1797 grey images of handwritten digits, 8x8, 10 classes: 1437 for training, 360 for testing.

    They are the test set of UCI's Optical Recognition of Handwritten Digits, taken from scikit-learn; its
    values 0 .. 16 become `round(value * 255 / 16)`. The split is random and fixed; a writer may be in both parts.
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


# ---- Diabetes -------------------------------------------------------------------------------------------

_NUM_TRAIN_PATIENTS = 354


@dataclass(frozen=True)
class Diabetes:
    """442 patients with diabetes: 10 numbers about each, and how far the disease was a year later; 354 for training.

    'features', float32 [n, 10], have mean 0 and variance 1 over the training examples: age, sex, body mass index, blood
    pressure and six of blood serum. 'target', float32 [n], is 25 to 346, over the training examples 151.8 in the mean
    with a deviation of 75.6. From Efron, Hastie, Johnstone and Tibshirani (2004), taken from scikit-learn; source,
    licence and the script that made the file: `diabetes.md` beside this module.

    >>> source = Diabetes().load("test")
    >>> source.num_examples, source.rows(np.arange(2))["target"].tolist()
    (88, [72.0, 107.0])
    """

    def load(self, split: str) -> ArrayRows:
        """Return the split 'train' or 'test', in memory."""
        require_split(split)
        with np.load(Path(__file__).with_name("diabetes.npz")) as file:
            features, target, order = file["features"], file["target"], file["order"]
        train, test = order[:_NUM_TRAIN_PATIENTS], order[_NUM_TRAIN_PATIENTS:]
        standardized = (features - features[train].mean(0)) / features[train].std(0)
        rows = train if split == "train" else test
        return ArrayRows({"features": standardized[rows], "target": target[rows].astype(np.float32)})


# ---- Synthetic images -----------------------------------------------------------------------------------

_CELLS = 4  # a class is a pattern of 4x4 cells of one colour each


@dataclass(frozen=True)
class Synthetic:
    """Images of `num_classes` coarse patterns, each half pattern and half noise; easy to learn.

    For measurements, and for tests of whole training runs. Example i has label i % num_classes. The images are a
    function of the fields alone, the same with every version of NumPy, and are held in memory: num * H * W * C bytes
    for each split.

    >>> source = Synthetic(image_shape=(8, 8, 1), num_classes=3, num_train=5).load('train')
    >>> source.rows(np.arange(5))['label']
    array([0, 1, 2, 0, 1], dtype=int32)
    """

    image_shape: tuple[int, int, int] = (32, 32, 3)
    num_classes: int = 10
    num_train: int = 10_000
    num_test: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.image_shape) != 3 or min(self.image_shape) < 1:
            raise InputError(f"image_shape must be (height, width, channels), got {self.image_shape}")
        if min(self.num_classes, self.num_train, self.num_test) < 1:
            raise InputError(f"num_classes, num_train and num_test must be at least 1, got {self}")
        taken = max(self.num_train, self.num_test) * math.prod(self.image_shape)
        if taken > (memory := memory_bytes()):
            raise InputError(
                f"images of {'x'.join(map(str, self.image_shape))}, num_train={self.num_train} and "
                f"num_test={self.num_test} take {taken / 1e9:,.0f} GB of memory, and this machine has "
                f"{memory / 1e9:,.0f}; wanted fewer or smaller ones"
            )
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be 0 .. 2**32 - 1, got {self.seed}")

    def load(self, split: str) -> ArraySource:
        """Return the split 'train' or 'test', made when it is asked for."""
        require_split(split)
        number, stream = (self.num_train, 1) if split == "train" else (self.num_test, 2)
        label = np.arange(number, dtype=np.int32) % self.num_classes
        image = self._noise(stream, (number, *self.image_shape))
        image >>= 1
        image += (self._patterns() >> 1)[label]
        return ArraySource(image, label, self.num_classes)

    def _patterns(self) -> np.ndarray:
        height, width, channels = self.image_shape
        cells = self._noise(0, (self.num_classes, _CELLS, _CELLS, channels))
        row, column = np.arange(height) * _CELLS // height, np.arange(width) * _CELLS // width
        return cells[:, row][:, :, column]

    def _noise(self, stream: int, shape: tuple[int, ...]) -> np.ndarray:
        # RandomState, because NumPy promises that its output never changes.
        noise = np.random.RandomState([self.seed, stream]).bytes(int(np.prod(shape)))
        return np.frombuffer(bytearray(noise), np.uint8).reshape(shape)
