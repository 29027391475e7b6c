"""How many threads make the batches of a run."""

import os

import jax
import numpy as np
import pytest

from jaxnet.comm import make_mesh
from jaxnet.config.run import Config
from jaxnet.data import Arrays, ArraySource, Shard, Synthetic, hold_out
from jaxnet.models import CNN
from jaxnet.training import batches
from jaxnet.training.batches import batch_stream, reading_threads
from jaxnet.training.resolutions import Phase

# Of 4 KiB each, and a label.
IMAGES = ArraySource(np.zeros((8, 32, 32, 4), np.uint8), np.zeros(8, np.int32), num_classes=2)


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def test_large_batches_in_memory_are_copied_by_threads_beside_accelerators():
    assert reading_threads(IMAGES, 1024, "gpu") == 2
    assert reading_threads(IMAGES, 3 * 2**14, "tpu") == 3
    assert reading_threads(IMAGES, 2**20, "gpu") == 4
    assert reading_threads(IMAGES, 1024, "cpu") is None
    assert reading_threads(IMAGES, 1000, "gpu") is None


def test_arrays_of_other_names_and_a_part_of_a_source_are_in_memory_too():
    table = Arrays(train={"features": np.zeros((8, 1024), np.float32), "target": np.zeros(8, np.float32)}).load("train")
    for source in (table, *hold_out(IMAGES, 0.5)):
        assert reading_threads(source, 1024, "gpu") == 2


def test_other_sources_say_themselves_how_many():
    class OnDisk:
        num_examples = 8

        def rows(self, indices):
            return IMAGES.rows(indices)

    class Threaded(ArraySource):
        threads = 3

    assert reading_threads(OnDisk(), 2**20, "gpu") is None
    assert reading_threads(Threaded(IMAGES.image, IMAGES.label, num_classes=2), 2**20, "gpu") is None


def test_the_loop_keeps_a_core(monkeypatch):
    for cores, threads in ((1, None), (2, None), (3, 2), (5, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert reading_threads(IMAGES, 2**20, "gpu") == threads


def test_a_run_asks_for_them(monkeypatch):
    asked = []
    monkeypatch.setattr(batches, "platform_of", lambda mesh: "gpu")
    monkeypatch.setattr(batches, "train_batches", lambda *_, threads, **__: asked.append(threads) or iter(()))
    config = Config(model=CNN(10), data=Synthetic((32, 32, 4), num_train=2**12, num_test=1), epochs=1, batch_size=2**12)
    mesh = make_mesh(devices=jax.devices()[:1])
    source, check = config.data.load("train"), lambda batch: None
    stream = batch_stream(config, source, (Phase(0, None),), mesh, Shard(0, 1), 0, check)
    assert list(stream) == []
    assert asked == [2]
