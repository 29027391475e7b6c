"""Shapes of data sets that are not on this machine, for plans."""

import numpy as np
import pytest

from jaxnet.data import TFDS, Digits, FashionMNIST, ImageNet, open_for_plan
from jaxnet.data.tfds import data_directory
from jaxnet.errors import InputError


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert data_directory(None) == tmp_path


@pytest.mark.parametrize(
    ("dataset", "count", "shape", "classes"),
    [
        (ImageNet(size=160), 1_281_167, (160, 160, 3), 1000),
        (TFDS("cifar10"), 50_000, (32, 32, 3), 10),
        (TFDS("mnist"), 60_000, (28, 28, 1), 10),
        (FashionMNIST(idx_dir="/nowhere"), 60_000, (28, 28, 1), 10),
    ],
)
def test_a_plan_needs_the_shapes_alone(dataset, count, shape, classes):
    source, missing = open_for_plan(dataset)
    assert "prepared" in missing
    assert (source.num_examples, source.num_classes) == (count, classes)
    rows = source.rows(np.arange(3))
    assert (rows["image"].shape, rows["image"].dtype) == ((3, *shape), np.uint8)
    assert (rows["label"].shape, rows["label"].dtype) == ((3,), np.int32)


def test_of_a_data_set_that_nobody_knows_the_error_is_that_of_opening_it():
    with pytest.raises(InputError, match="the data set emnist is not prepared in"):
        open_for_plan(TFDS("emnist"))


def test_data_that_are_here_are_opened():
    source, missing = open_for_plan(Digits())
    assert (source.num_examples, missing) == (1437, "")
