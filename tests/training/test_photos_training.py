"""Training on photos from disk: damaged records are counted in the summary and named in the log."""

import logging

import numpy as np
import tensorflow_datasets as tfds

from jaxnet.data import Photos
from jaxnet.models import CNN
from jaxnet.training.config import Config, Log
from support.imagenet import photo
from train import train


def write_album(root, files):
    directory = root / "album/1.0.0"
    directory.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(name="album", version="1.0.0", data_dir=str(directory), module_name="album")
    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)}
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=100, file_format="array_record")
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"image": file, "label": i % 2} for i, file in enumerate(files)]})
    writer.close_all()


def test_damaged_photos_are_in_the_summary(tmp_path, caplog):
    write_album(tmp_path, [b"" if i in (18, 21) else photo(i) for i in range(24)])
    config = Config(
        model=CNN(2, widths=(2,), hidden=4),
        data=Photos(
            "album", str(tmp_path), size=8, test_size=8, test_resize=9, train_split="train", test_split="train[:8]"
        ),
        epochs=2,
        batch_size=8,
        eval_batch_size=8,
        log=Log(tensorboard=False),
    )
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        summary = train(config, tmp_path / "run", quiet=True)
    assert summary["damaged_records"] == 2
    assert summary["examples"] == 8
    assert np.isfinite(summary["loss"])
    assert sum("is damaged: it is empty" in message for message in caplog.messages) == 2
