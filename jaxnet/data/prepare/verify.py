"""Read every record of a prepared data set back, and name the damaged ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxnet.data.photos.decoding import DamagedImage, open_image, quiet_pillow
from jaxnet.data.photos.source import file_name, read_example
from jaxnet.data.prepare.shards import PrepareListener
from jaxnet.data.tfds import data_directory, find_builder, open_examples, require_prepared

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_CHUNK = 1024  # records handed to the threads at once


class Verified(NamedTuple):
    """The result of `verify`.

    Attributes:
        directory: where the data set is.
        examples: how many each split has, the damaged ones included.
        damaged: for each damaged record 'split/record', with its file's name if it has one, what is wrong.
    """

    directory: Path
    examples: dict[str, int]
    damaged: dict[str, str]


def verify(
    name: str, data_dir: str | None = None, *, threads: int | None = None, watch: PrepareListener | None = None
) -> Verified:
    """Read and decode every image of every split of a data set that TFDS has prepared, and check the labels.

    Args:
        name: in TFDS's notation, such as 'imagenet2012'.
        data_dir: where prepared data sets are; None means $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        threads: how many threads decode; None: one for each core.
        watch: is told how far the work is.

    Raises:
        InputError: it is not prepared, or not with random access.
    """
    watch = watch or PrepareListener()
    builder = find_builder(name, data_directory(data_dir))
    require_prepared(name, builder)
    quiet_pillow()
    examples: dict[str, int] = {}
    damaged: dict[str, str] = {}
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        for split, info in builder.info.splits.items():
            examples[split] = info.num_examples
            watch.begin(f"reading {split}", info.num_examples)
            check = _checker(builder, split)
            for start in range(0, info.num_examples, _CHUNK):
                rows = range(start, min(start + _CHUNK, info.num_examples))
                found = dict(wrong for wrong in pool.map(check, rows) if wrong)
                damaged |= {f"{split}/{where}": reason for where, reason in found.items()}
                watch.advance(len(rows))
    return Verified(Path(builder.data_dir), examples, damaged)


def _checker(builder: tfds.core.DatasetBuilder, split: str) -> Callable[[int], tuple[str, str] | None]:
    import tensorflow_datasets as tfds

    features = builder.info.features
    images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
    labels = {key: f.num_classes for key, f in features.items() if isinstance(f, tfds.features.ClassLabel)}
    named = ("file_name",) if "file_name" in features else ()
    records = open_examples(builder, split, (*images, *labels, *named))

    def check(row: int) -> tuple[str, str] | None:
        name = ""
        try:
            example = read_example(records, row)
            name = f" ({file_name(example)})" if named else ""
            for key in images:
                with open_image(example[key]) as picture:
                    picture.load()
            for key, classes in labels.items():
                if not 0 <= example[key] < classes:
                    raise DamagedImage(f"{key} is {example[key]}, wanted 0 .. {classes - 1}")
        except DamagedImage as error:
            return f"{row}{name}", str(error)
        return None

    return check
