"""How many threads make the batches of a run."""

import os

import numpy as np
import pytest

from jaxnet.data import ArraySource, Digits
from jaxnet.training.batches import reading_threads

IMAGES = ArraySource(np.zeros((4, 32, 32, 4), np.uint8), np.zeros(4, np.int32), num_classes=2)  # 4 KiB each


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def test_large_batches_are_copied_by_threads_beside_accelerators():
    assert reading_threads(IMAGES, 1024, "gpu") == 4
    assert reading_threads(IMAGES, 1024, "tpu") == 4
    assert reading_threads(IMAGES, 1024, "cpu") is None
    assert reading_threads(IMAGES, 1023, "gpu") is None


def test_other_sources_say_themselves_how_many():
    class Own:
        threads = 3

    assert reading_threads(Own(), 10**6, "gpu") is None
    assert reading_threads(Digits().load("train"), 64, "gpu") is None


def test_the_loop_keeps_a_core(monkeypatch):
    for cores, threads in ((1, None), (2, None), (3, 2), (5, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert reading_threads(IMAGES, 1024, "gpu") == threads
