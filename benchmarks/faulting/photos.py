"""A configuration of train.py: photos of generated texture, in the folder FAULTS_ALBUM; and how they got there."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from jaxnet.config.run import Config, Log
from jaxnet.data import Photos
from jaxnet.models import CNN

COUNT = 64
_BATCH = 16
_PASSES = 5


def get_config() -> Config:
    """A few passes, so that every record is read."""
    album = os.environ.get("FAULTS_ALBUM")
    return Config(
        model=CNN(2, widths=(2,), hidden=4),
        data=Photos("album", album, size=8, test_size=8, test_resize=9),
        epochs=_PASSES,
        batch_size=_BATCH,
        eval_batch_size=_BATCH,
        log=Log(every_steps=1, tensorboard=False),
    )


def photo(seed: int) -> bytes:
    """A JPEG of smooth noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((52, 40), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def write_album(root: Path, files: Sequence[bytes]) -> None:
    """The data set: these files to train on, and good ones to test on."""
    import tensorflow_datasets as tfds  # seconds, which no other fault needs

    directory = root / "album/1.0.0"
    directory.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(name="album", version="1.0.0", data_dir=str(directory), module_name="album")
    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)}
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=2 * COUNT, file_format="array_record")
    writer.initialize_splits(["train", "test"])
    splits = {"train": files, "test": [photo(COUNT + number) for number in range(_BATCH)]}
    writer.add_examples(
        {split: [{"image": file, "label": at % 2} for at, file in enumerate(held)] for split, held in splits.items()}
    )
    writer.close_all()
