"""Training on photos from disk: damaged records are counted and named, and so is another decoder."""

import json
import logging
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxnet.config.keys import flatten
from jaxnet.config.run import Config, Log
from jaxnet.data import ImageNet, Photos
from jaxnet.data.photos import datasets
from jaxnet.data.photos.decoding import PILLOW
from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.training.workdir import refuse_changes
from support.imagenet import photo
from support.runs import train


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


def test_what_is_said_of_damaged_photos_and_of_another_decoder(tmp_path, caplog, monkeypatch):
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
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert [line["damaged_records"] for line in lines if line["split"] == "test"] == [2, 2]

    shutil.rmtree(tmp_path / "run/checkpoints/000006")
    monkeypatch.setattr(datasets, "best_decoder", lambda: PILLOW._replace(name="another"))
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        assert train(config, tmp_path / "run", quiet=True)["steps"] == 6
    assert any(message.startswith("images are decoded by another from now on") for message in caplog.messages)


def test_a_run_that_wrote_down_the_sizes_of_test_pictures_goes_on(tmp_path):
    saved = tmp_path / "config.json"
    config = Config(CNN(10), ImageNet(), batch_size=64, epochs=1)
    before = {**flatten(config), "data.test_size": 224, "data.test_resize": 256}
    saved.write_text(json.dumps(before))
    refuse_changes(saved, config, "a", "cpu", allowed=False)
    saved.write_text(json.dumps({**before, "data.test_resize": 300}))
    with pytest.raises(InputError, match=r"another config \(data\.test_resize: 300 -> null\)"):
        refuse_changes(saved, config, "a", "cpu", allowed=False)
