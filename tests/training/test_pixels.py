"""Normalization and resizing of images, in training and in evaluation."""

import dataclasses

import jax
import numpy as np
import pytest

from configs import digits
from jaxnet import comm
from jaxnet.data import ArraySource, Digits
from jaxnet.errors import InputError
from jaxnet.models import CNN, ResNet
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.tasks.mixing import Mixing
from jaxnet.training.prepare import prepare
from support.refusals import says

IMAGES = np.random.RandomState(0).randint(0, 256, (2, 4, 6, 3)).astype(np.uint8)


def linear(values, size):
    """Bilinear along axis 1, to more pixels, whose centres lie as those of the old ones do."""
    old = values.shape[1]
    place = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    below = np.minimum(place.astype(int), old - 2)
    part = (place - below)[None, :, None, None]
    return (1 - part) * values[:, below] + part * values[:, below + 1]


def test_resizing_is_bilinear_and_comes_before_normalization():
    wanted = linear(linear(IMAGES / 255, 9).swapaxes(1, 2), 9).swapaxes(1, 2)
    got = Pixels((0.5, 0.4, 0.3), (0.2,), size=9).normalize(IMAGES)
    np.testing.assert_allclose(got, (wanted - np.array([0.5, 0.4, 0.3])) / 0.2, atol=1e-5)


def test_a_smaller_size_averages():
    got = Pixels((0.0,), (1.0,), size=2).normalize(
        np.tile(np.array([0, 255], np.uint8)[None, :, None, None], (1, 16, 32, 1))
    )
    np.testing.assert_allclose(got, 128 / 255, atol=0.02)


def test_the_same_size_changes_nothing():
    square = IMAGES[:, :, :4]
    np.testing.assert_array_equal(Pixels(size=4).normalize(square), Pixels().normalize(square))


def config_with(**changes):
    config = dataclasses.replace(digits.get_config(), model=CNN(10, widths=(4, 8, 8, 8), hidden=16))
    return dataclasses.replace(config, batch_size=32, eval_batch_size=32, **changes)


def test_a_network_too_deep_for_the_images_takes_them_resized():
    mesh, source = comm.make_mesh(1, jax.devices()[:2]), Digits().load("train")
    with pytest.raises(InputError, match="images of 8x8"):
        prepare(config_with(), mesh, source=source)
    experiment = prepare(config_with(task=ImageClassification(Pixels(size=16))), mesh, source=source)
    assert experiment.batch_shapes["image"].shape == (32, 8, 8, 1)  # as it travels to the device
    experiment.step.lower(experiment.layout.shapes, experiment.batch_shapes)


@dataclasses.dataclass(frozen=True)
class Sized:
    """A data set of zeros in two sizes."""

    size: int
    test_size: int

    def load(self, split):
        side = self.size if split == "train" else self.test_size
        return ArraySource(np.zeros((64, side, side, 1), np.uint8), np.zeros(64, np.int32), num_classes=10)


def test_test_images_that_the_network_cannot_take_are_refused_before_training():
    mesh = comm.make_mesh(1, jax.devices()[:2])

    def prepared(model, **changes):
        config = dataclasses.replace(config_with(data=Sized(12, 16), **changes), model=model)
        return prepare(config, mesh, source=config.data.load("train"), tests=config.data.load("test"))

    dense = CNN(10, widths=(4,), hidden=8)
    with pytest.raises(InputError) as error:
        prepared(dense)
    says(str(error.value), ["data.size=12 and data.test_size=16: ", "examples of 12x12x1", "test examples of 16x16x1"])
    assert "\n" not in str(error.value)
    prepared(dense, task=ImageClassification(Pixels(size=12)))
    prepared(ResNet(10, (1, 1), block="basic", stem="small", channels=4))


def test_pairs_are_refused_where_a_device_would_break_them():
    mesh, source = comm.make_mesh(1, jax.devices()[:8]), Digits().load("train")
    config = dataclasses.replace(config_with(), model=CNN(10, widths=(4,)), batch_size=24)
    config = dataclasses.replace(config, task=ImageClassification(mixing=Mixing(mixup=0.2)))
    with pytest.raises(InputError) as error:
        prepare(config, mesh, source=source)
    says(
        str(error.value),
        ["batch_size=24: wanted a multiple of 16, for 8 devices", "each with groups of 2 examples", "nearest: 32"],
    )
