"""Augmentation is a function of the example's key, and matches its definition."""

import jax
import numpy as np
import pytest

from jaxnet.tasks.augmentation import Augmentation

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


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_erase_zeroes_one_square_of_the_given_side(side):
    heights, widths = set(), set()
    for out in many(Augmentation(erase=side), IMAGES[0]):
        erased = (out == 0).all(-1)
        height, width = (int(erased.any(axis).sum()) for axis in (1, 0))
        assert erased.sum() == height * width  # a rectangle, cut at the border
        heights.add(height)
        widths.add(width)
        np.testing.assert_array_equal(out[~erased], IMAGES[0][~erased])
    assert max(heights) == max(widths) == side
    assert min(heights) == min(widths) == (side + 1) // 2


def grey(image):
    return (image @ np.array([0.299, 0.587, 0.114]))[..., None]


RGB = np.random.RandomState(0).randint(60, 120, (6, 5, 3)).astype(np.uint8)  # far from what is cut off


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("brightness", lambda image: np.zeros((1, 1, 1))),
        ("contrast", lambda image: grey(image).mean().reshape(1, 1, 1)),
        ("saturation", grey),
    ],
)
def test_colour_blends_with_another_image_by_a_uniform_factor(name, other):
    image, blend = RGB.astype(np.float64), other(RGB.astype(np.float64))
    out = many(Augmentation(**{name: 0.5}), RGB, 32).astype(np.float64)
    factors = ((out - blend) * (image - blend)).sum((1, 2, 3)) / np.square(image - blend).sum()
    assert 0.49 < factors.min() < 0.7
    assert 1.3 < factors.max() < 1.51
    wanted = factors[:, None, None, None] * image + (1 - factors)[:, None, None, None] * blend
    np.testing.assert_allclose(out, wanted, atol=0.75)  # bytes are rounded


def test_grey_images_have_no_saturation_and_bytes_stay_bytes():
    image = RGB[..., :1]
    out = many(Augmentation(saturation=1.0), image, 8)
    np.testing.assert_array_equal(out, np.broadcast_to(image, out.shape))
    bright = many(Augmentation(brightness=1.0), np.full((2, 2, 3), 250, np.uint8), 32)
    assert bright.dtype == np.uint8
    assert bright.max() == 255
