"""Augmentation is a function of the example's key, and does what it says."""

import jax
import numpy as np
import pytest

from jaxnet.training.augment import Augmentation

IMAGES = np.arange(1, 1 + 4 * 6 * 5 * 2).reshape(4, 6, 5, 2).astype(np.uint8)
KEYS = jax.random.split(jax.random.key(0), 4)


@pytest.mark.parametrize("augment", [Augmentation(flip=True), Augmentation(shift=2), Augmentation(erase=3)])
def test_randomness_belongs_to_the_example(augment):
    whole = augment(KEYS, IMAGES)
    assert whole.shape == IMAGES.shape
    assert whole.dtype == IMAGES.dtype
    np.testing.assert_array_equal(augment(KEYS[2:], IMAGES[2:]), whole[2:])


def test_nothing_asked_changes_nothing():
    np.testing.assert_array_equal(Augmentation()(KEYS, IMAGES), IMAGES)


def many(augment, image, count=64):
    keys = jax.random.split(jax.random.key(7), count)
    return np.asarray(augment(keys, np.broadcast_to(image, (count, *image.shape))))


def test_flip_mirrors_about_half():
    image = IMAGES[0]
    out = many(Augmentation(flip=True), image)
    flipped = (out == image[:, ::-1]).all((1, 2, 3))
    assert (flipped | (out == image).all((1, 2, 3))).all()
    assert 16 < flipped.sum() < 48


def test_shift_gives_every_offset_and_fills_with_zeros():
    image = IMAGES[0]
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    offsets = {
        (y, x)
        for out in many(Augmentation(shift=1), image, 200)
        for y in range(3)
        for x in range(3)
        if (padded[y : y + 6, x : x + 5] == out).all()
    }
    assert offsets == {(y, x) for y in range(3) for x in range(3)}


def test_erase_zeroes_one_square_of_the_given_side():
    for out in many(Augmentation(erase=3), IMAGES[0]):
        rows, cols = np.nonzero((out == 0).all(-1))
        assert 4 <= len(rows) <= 9  # cut at the border, whole inside
        assert np.ptp(rows) <= 2
        assert np.ptp(cols) <= 2
        np.testing.assert_array_equal(out[(out != 0).all(-1)], IMAGES[0][(out != 0).all(-1)])
