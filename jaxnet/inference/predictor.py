"""A trained network that is called with images, from memory or from files."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxnet.data import Inputs
from jaxnet.errors import InputError, one_line
from jaxnet.inference.pictures import Unreadable, read_picture

Run = Callable[[np.ndarray], np.ndarray]

_READERS = min(8, os.cpu_count() or 1)  # each may hold a picture of half a gigabyte


class Prediction(NamedTuple):
    """What became of one file: the probability of each class, or what is wrong with the file."""

    path: Path
    probabilities: np.ndarray | None
    error: str = ""


class Predictor:
    """`predictor(images)` is the probability of each class, float32 [n, classes], for uint8 images [n, H, W, C].

    Batches are padded to one of a few sizes, each of which is compiled when it is first needed: nothing is compiled
    again for another number of images.

    Attributes:
        inputs: the images that the network takes, and its classes.
        sizes: the sizes of the batches that are run, in ascending order.
        where: the file that the network comes from.
    """

    def __init__(self, run: Run, inputs: Inputs, sizes: Sequence[int], where: str) -> None:
        self._run = run
        self.inputs = inputs
        self.sizes = tuple(sizes)
        self.where = where

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """The probabilities; InputError unless `images` are uint8 [n, height, width, channels] as in training."""
        shape = self.inputs.image_shape
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != shape:
            wanted = ", ".join(map(str, ("n", *shape)))
            raise InputError(f"images are {images.dtype}{list(images.shape)}, wanted uint8[{wanted}]")
        parts = [images[start : start + self.sizes[-1]] for start in range(0, len(images), self.sizes[-1])]
        return np.concatenate([self._padded(part) for part in parts or [images]])

    def _padded(self, images: np.ndarray) -> np.ndarray:
        size = next(size for size in self.sizes if size >= len(images))
        padding = [(0, size - len(images)), (0, 0), (0, 0), (0, 0)]
        return np.asarray(self._run(np.pad(images, padding)))[: len(images)]

    def files(self, paths: Iterable[Path]) -> Iterator[Prediction]:
        """One prediction a file, in order; files are read by several threads, a batch at a time."""
        remaining = iter(paths)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="pictures") as pool:
            while batch := list(islice(remaining, self.sizes[-1])):
                yield from self._batch(batch, list(pool.map(self._read, batch)))

    def _read(self, path: Path) -> np.ndarray | str:
        try:
            return read_picture(path, self.inputs)
        except Unreadable as error:
            return one_line(error)

    def _batch(self, paths: list[Path], read: list[np.ndarray | str]) -> Iterator[Prediction]:
        images = [image for image in read if isinstance(image, np.ndarray)]
        rows = iter(self(np.stack(images)) if images else ())
        for path, result in zip(paths, read, strict=True):
            if isinstance(result, str):
                yield Prediction(path, None, result)
                continue
            row = next(rows)
            finite = bool(np.isfinite(row).all())
            yield Prediction(path, row) if finite else Prediction(path, None, f"{self.where} gives NaN for it")


def batch_sizes(largest: int) -> tuple[int, ...]:
    """Powers of two up to `largest`, and `largest`.

    >>> batch_sizes(6)
    (1, 2, 4, 6)
    """
    if largest < 1:
        raise InputError(f"batch {largest}: wanted at least 1")
    return (*(2**power for power in range((largest - 1).bit_length())), largest)
