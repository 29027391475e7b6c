"""Sources in memory: what they return, and what they refuse."""

import hashlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxnet.data
from jaxnet.data import ArraySource, Digits, Synthetic, builtin, check_rows, open_split, tfds
from jaxnet.data.source import read_rows
from jaxnet.errors import InputError

FILES = Path(jaxnet.data.__file__).parent


def arrays(name: str = "digits.npz") -> dict[str, np.ndarray]:
    with np.load(FILES / name) as file:
        return dict(file)


def test_rows_come_in_the_order_asked_for():
    six = ArraySource(np.arange(6, dtype=np.uint8).reshape(3, 1, 2, 1), np.array([2, 0, 1], np.int32), 3)
    rows = six.rows(np.array([2, 0, 2]))
    assert rows["image"].reshape(3, 2).tolist() == [[4, 5], [0, 1], [4, 5]]
    assert rows["label"].tolist() == [1, 2, 1]
    assert (six.num_examples, six.image_shape, six.num_classes) == (3, (1, 2, 1), 3)


class Own:
    """A user's own data set, outside this package."""

    def __init__(self, load):
        self.load = load


def test_what_goes_wrong_in_a_users_data_set_is_one_error_with_its_line():
    def load(split):
        return {"train": 1}[split]

    line = load.__code__.co_firstlineno + 1
    with pytest.raises(InputError, match=rf"data: Own.load\('test'\) failed in line {line} of .*py: KeyError: 'test'"):
        open_split(Own(load), "test")
    with pytest.raises(InputError, match=r"gave a int without num_examples, rows: wanted"):
        open_split(Own(load), "train")
    assert open_split(Own(Digits().load), "test").num_examples == 360


def test_an_error_of_our_own_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(builtin, "_NUM_TRAIN", "many")
    with pytest.raises(TypeError):
        open_split(Digits(), "train")


def test_what_the_data_set_itself_says_is_kept():
    with pytest.raises(InputError, match="split 'dev' does not exist: use 'train' or 'test'"):
        open_split(Own(Digits().load), "dev")


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (np.zeros((2, 8, 8, 1)), np.zeros(2, np.int32), "images must be uint8"),
        (np.zeros((2, 8, 8), np.uint8), np.zeros(2, np.int32), "images must be uint8"),
        (np.zeros((0, 8, 8, 1), np.uint8), np.zeros(0, np.int32), "with n > 0"),
        (np.zeros((2, 8, 8, 1), np.uint8), np.zeros(2, np.int64), r"labels must be int32 \[2\], got int64"),
        (np.zeros((2, 8, 8, 1), np.uint8), np.zeros(3, np.int32), r"labels must be int32 \[2\]"),
        (
            np.zeros((2, 8, 8, 1), np.uint8),
            np.array([0, 4], np.int32),
            "labels of the data set must be 0 .. 3 for 4 classes, got 0 .. 4; TFDS gives -1 to what",
        ),
        (np.zeros((2, 8, 8, 1), np.uint8), np.array([-1, 3], np.int32), "got -1 .. 3"),
    ],
)
def test_arrays_of_another_form_are_refused(image, label, message):
    with pytest.raises(InputError, match=message):
        ArraySource(image, label, num_classes=4)


@pytest.mark.parametrize("chunk", [1, 100, 359, 360, 361])
def test_a_source_is_read_into_memory_in_pieces(monkeypatch, chunk):
    monkeypatch.setattr(tfds, "_CHUNK", chunk)
    digits = Digits().load("test")
    copy = tfds.read_into_memory(digits)
    np.testing.assert_array_equal(copy.image, digits.image)
    np.testing.assert_array_equal(copy.label, digits.label)
    assert copy.num_classes == 10


@pytest.mark.parametrize("dataset", [Digits(), Synthetic(num_train=2, num_test=2)])
def test_there_are_two_splits(dataset):
    with pytest.raises(InputError, match="split 'validation' does not exist: use 'train' or 'test'"):
        dataset.load("validation")


def test_digits_are_those_of_the_file_split_in_two():
    file, train, test = arrays(), Digits().load("train"), Digits().load("test")
    assert (train.num_examples, test.num_examples) == (1437, 360)
    assert sorted(file["order"]) == list(range(1797))
    pixels = np.concatenate([train.image, test.image])[..., 0]
    np.testing.assert_array_equal(np.round(pixels * (16 / 255)), file["image"][file["order"]])
    np.testing.assert_array_equal(np.concatenate([train.label, test.label]), file["label"][file["order"]])
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_the_digits_are_those_that_their_page_names():
    file, page = arrays(), (FILES / "digits.md").read_text()
    content = b"".join(file[name].tobytes() for name in ("image", "label", "order"))
    assert hashlib.sha256(content).hexdigest() in page


def test_the_script_on_their_page_makes_the_digits(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn, from which the digits were taken, is not installed.")
    [script] = re.findall(r"```python\n(.*?)```", (FILES / "digits.md").read_text(), re.DOTALL)
    (tmp_path / "jaxnet/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    with np.load("jaxnet/data/digits.npz") as made:
        for name, array in arrays().items():
            np.testing.assert_array_equal(made[name], array)


def test_synthetic_images_are_a_function_of_the_fields():
    small = Synthetic(image_shape=(6, 5, 2), num_classes=3, num_train=7, num_test=4)
    digest = hashlib.sha256(small.load("train").image.tobytes()).hexdigest()
    assert digest == "8cb106bc265e1488b29efc9bbfff186ab5d43837b65f1c62c3f05c83c681da7d"
    assert not np.array_equal(small.load("train").image[:4], small.load("test").image)
    other = Synthetic(image_shape=(6, 5, 2), num_classes=3, num_train=7, num_test=4, seed=1)
    assert not np.array_equal(small.load("train").image, other.load("train").image)


def test_synthetic_classes_can_be_told_apart_on_unseen_images():
    dataset = Synthetic(image_shape=(8, 8, 3), num_classes=10, num_train=500, num_test=100)
    train, test = dataset.load("train"), dataset.load("test")
    means = np.stack([train.image[train.label == label].mean(0) for label in range(10)])
    distances = ((test.image[:, None] - means) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == test.label).mean() == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_shape": (32, 32)}, r"image_shape must be \(height, width, channels\), got \(32, 32\)"),
        ({"image_shape": (32, 0, 3)}, "image_shape must be"),
        ({"num_classes": 0}, "must be at least 1"),
        ({"num_test": 0}, "must be at least 1"),
        ({"seed": -1}, "seed must be 0"),
    ],
)
def test_a_synthetic_set_that_cannot_be_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Synthetic(**fields)


class Flaky:
    """Fails after so many calls, as a service of data may."""

    num_examples = 4

    def __init__(self, good, error):
        self._good, self._error = good, error

    def rows(self, indices):
        self._good -= 1
        if self._good < 0:
            raise self._error
        return {"x": np.zeros(len(indices), np.float32)}


def test_what_fails_at_the_start_is_a_mistake_and_later_what_it_is():
    """A mistake ends a job for good; after another failure its launcher starts it again."""
    for good, which in ((0, "the first example"), (1, "the first and the last example")):
        with pytest.raises(InputError, match=rf"Flaky\.rows of {which} failed in line \d+ of .*: KeyError: 'gone'"):
            check_rows(Flaky(good, KeyError("gone")))
    like = {"x": jax.ShapeDtypeStruct((), "float32")}
    with pytest.raises(KeyError, match="gone"):
        read_rows(Flaky(0, KeyError("gone")), np.arange(2), like)
    with pytest.raises(InputError, match=r"Flaky\.rows of 2 examples failed .*: SystemExit: 0"):  # no end of a run
        read_rows(Flaky(0, SystemExit(0)), np.arange(2), like)
