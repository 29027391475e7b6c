"""Fashion-MNIST, from the files that its authors publish."""

from __future__ import annotations

import gzip
import io
import logging
import math
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jaxnet.data.source import Blank, Source, require_split
from jaxnet.data.tfds import TFDS, data_directory, find_builder, is_prepared
from jaxnet.errors import InputError
from jaxnet.files import expanded

# ---- The IDX format -------------------------------------------------------------------------------------

_UINT8 = 0x08  # the format's code for the type of the elements


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes with `ndim` dims: the format of MNIST and its successors.

    The file is: two zero bytes, the type, `ndim`; the sizes as big-endian uint32; the elements.

    Raises:
        InputError: the file cannot be read, is damaged, or holds something else; it names the file.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}") from error
    header = 4 + 4 * ndim
    magic = bytes([0, 0, _UINT8, ndim])
    if len(content) < header or content[:4] != magic:
        got = content[:4].hex() or "nothing"
        raise InputError(
            f"{path} is not an IDX file of bytes with {ndim} dims: it starts with {got}, not {magic.hex()}"
        )
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise InputError(
            f"{path} is damaged: its header says {shape}, which is {math.prod(shape)} bytes, "
            f"but {len(content) - header} follow"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


# ---- The data set ---------------------------------------------------------------------------------------

_NAME = "fashion_mnist"
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_FILES = {"train": "train", "test": "t10k"}  # prefix of the files of each split
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FashionMNIST:
    """Zalando's articles of clothing: 28x28 grey, 10 classes, 60,000 for training and 10,000 for testing.

    Read from TFDS's prepared `fashion_mnist` in `data_dir`. If that is absent, it is prepared first, once
    (5 seconds, 43 MB), from the four files in `idx_dir`, in their order, without TensorFlow; TFDS itself can read the
    result. Any number of processes may do so at the same time.

    Attributes:
        data_dir: where prepared data sets are; None means $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        idx_dir: where train-images-idx3-ubyte.gz and the other three are; None means where Debian's package
            dataset-fashion-mnist puts them.
    """

    data_dir: str | None = None
    idx_dir: str | None = None

    def load(self, split: str) -> Source:
        """Return the split 'train' or 'test', in memory; InputError if it is neither prepared nor can be."""
        require_split(split)
        root = data_directory(self.data_dir)
        if not is_prepared(find_builder(_NAME, root)):
            prepare(root, self._files())
        return TFDS(_NAME, data_dir=str(root)).load(split)

    def blank(self) -> Blank:
        """The shapes of the training examples, which need no data; see `open_for_plan`."""
        return TFDS(_NAME, data_dir=self.data_dir).blank()

    def _files(self) -> Path:
        directory = expanded(self.idx_dir) if self.idx_dir else _DEBIAN
        if not directory.is_dir():
            raise InputError(
                f"Fashion-MNIST is neither prepared in {data_directory(self.data_dir)} nor in {directory}. "
                "Install it (Debian, Ubuntu: apt-get install dataset-fashion-mnist), or set idx_dir to the "
                "directory that holds train-images-idx3-ubyte.gz and the other three files"
            )
        return directory


def prepare(root: Path, idx_dir: Path) -> None:
    """Write the four IDX files of `idx_dir` as TFDS's fashion_mnist (ArrayRecord) in `root`.

    Each process writes into a directory of its own, and the first to finish renames it to the final name.
    """
    splits = {split: _read(idx_dir, prefix) for split, prefix in _FILES.items()}
    target = Path(find_builder(_NAME, root).data_dir)
    _log.info("preparing Fashion-MNIST in %s", target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"incomplete.{_NAME}-", dir=root) as own:
            written = _write(Path(own), splits)
            _rename(written, target)
    except OSError as error:
        raise InputError(
            f"Fashion-MNIST cannot be prepared in {target}: {error}. "
            "Set data_dir or TFDS_DATA_DIR to a directory that you may write to"
        ) from error


def _read(directory: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    images_path = directory / f"{prefix}-images-idx3-ubyte.gz"
    labels_path = directory / f"{prefix}-labels-idx1-ubyte.gz"
    images, labels = read_idx(images_path, ndim=3), read_idx(labels_path, ndim=1)
    if not len(images) or images.shape[1:] != (28, 28):
        raise InputError(f"{images_path} does not hold images of 28x28: {images.shape}")
    if len(labels) != len(images):
        raise InputError(f"{labels_path} has {len(labels)} labels for {len(images)} images in {images_path}")
    if labels.max() > 9:
        raise InputError(f"{labels_path} holds the label {labels.max()}; Fashion-MNIST has 0 .. 9")
    return images, labels


def _write(root: Path, splits: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    import tensorflow_datasets as tfds

    # TFDS's own builder describes the data set. This writer needs no TensorFlow and keeps the order of the files.
    info = tfds.builder(_NAME, data_dir=root, file_format="array_record").info
    directory = Path(info.data_dir)
    directory.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=2**31, file_format="array_record")
    writer.initialize_splits(list(splits))
    for split, (images, labels) in splits.items():
        writer.add_examples({split: list(_examples(images, labels))})
    writer.close_all()
    return directory


def _examples(images: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, Any]]:
    for image, label in zip(images, labels, strict=True):
        png = io.BytesIO()  # encode here: TFDS would need TensorFlow for it
        Image.fromarray(image).save(png, "PNG")
        yield {"image": png.getvalue(), "label": int(label)}


def _rename(written: Path, target: Path) -> None:
    try:
        written.rename(target)
    except OSError:
        if not is_prepared(find_builder(_NAME, target.parent.parent)):
            raise  # otherwise another process was first, and it wrote the same
