"""Batches: padded to few sizes, each compiled once; files that are damaged do not move the others."""

import re

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.inference import Predictor, load
from jaxnet.inference.predictor import batch_sizes

INPUTS = Inputs((2, 2, 1), 4)


def means(images):
    """Each row is a function of its own image alone."""
    mean = images.astype(np.float32).mean((1, 2, 3))
    return np.stack([mean, mean + 1, mean + 2, mean + 3], -1)


@given(st.integers(0, 20), st.integers(1, 7))
def test_any_number_of_images_in_any_batches(count, largest):
    images = np.random.default_rng(count).integers(0, 256, (count, 2, 2, 1), np.uint8)
    seen = []
    predictor = Predictor(lambda batch: seen.append(len(batch)) or means(batch), INPUTS, batch_sizes(largest), "x")
    np.testing.assert_array_equal(predictor(images), means(images))
    assert set(seen) <= set(batch_sizes(largest))


def test_nothing_is_compiled_again():
    traced = []
    run = jax.jit(lambda images: traced.append(images.shape[0]) or images.sum((1, 2)).astype("float32"))
    predictor = Predictor(lambda images: np.asarray(run(images)), INPUTS, batch_sizes(8), "x")
    for count in (1, 3, 4, 5, 7, 8, 9, 30, 2, 3, 5):
        predictor(np.zeros((count, 2, 2, 1), np.uint8))
    assert sorted(traced) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 2, 1), np.uint8), np.zeros((1, 2, 2, 1), np.float32), np.zeros((1, 2, 3, 1), np.uint8)],
    ids=["no batch", "floats", "another shape"],
)
def test_other_images_are_refused(images):
    with pytest.raises(InputError, match=r"wanted uint8\[n, 2, 2, 1\]"):
        Predictor(means, INPUTS, (1,), "x")(images)


def test_numbers_that_are_none_are_an_error_of_the_file(pictures):
    predictor = Predictor(lambda images: np.full((len(images), 4), np.nan), INPUTS, (1, 2), "weights")
    assert [made.error for made in predictor.files(pictures[:1])] == ["weights gives NaN for it"]


def test_damaged_files_leave_the_others_in_place(pictures, tmp_path):
    (tmp_path / "damaged.png").write_bytes(pictures[0].read_bytes()[:40])
    paths = [pictures[0], tmp_path / "damaged.png", pictures[1], tmp_path / "none.png", pictures[2]]
    predictor = Predictor(means, INPUTS, batch_sizes(2), "x")
    made = list(predictor.files(paths))
    assert [each.path for each in made] == paths
    assert [each.probabilities is None for each in made] == [False, True, False, True, False]
    for each in made[::2]:
        [alone] = predictor.files([each.path])
        np.testing.assert_array_equal(each.probabilities, alone.probabilities)


def test_it_says_what_it_takes(workdir):
    assert re.fullmatch(r"<Predictor of .*: uint8\[n, 8, 8, 1\] to 10 classes>", repr(load(workdir)))
