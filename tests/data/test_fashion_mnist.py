"""Fashion-MNIST: prepared from IDX files once, by whoever is first, and readable by TFDS itself."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxnet.data import FashionMNIST, fashion_mnist
from jaxnet.errors import InputError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SPLITS = {"train": "train", "test": "t10k"}


def assert_holds(source, idx_arrays, split: str) -> None:
    images = idx_arrays[f"{SPLITS[split]}-images-idx3-ubyte"][..., None]
    labels = idx_arrays[f"{SPLITS[split]}-labels-idx1-ubyte"]
    rows = source.rows(np.arange(len(images)))
    assert source.num_examples == len(images)
    np.testing.assert_array_equal(rows["image"], images)
    np.testing.assert_array_equal(rows["label"], labels)
    assert (source.num_classes, source.image_shape) == (10, (28, 28, 1))


@pytest.mark.usefixtures("_no_network")
def test_files_are_prepared_in_their_order(tmp_path, idx_dir, idx_arrays):
    dataset = FashionMNIST(data_dir=str(tmp_path / "data"), idx_dir=str(idx_dir))
    for split in SPLITS:
        assert_holds(dataset.load(split), idx_arrays, split)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["fashion_mnist"]


def test_once_prepared_the_files_are_not_needed(tmp_path, idx_dir, idx_arrays):
    dataset = FashionMNIST(data_dir=str(tmp_path / "data"), idx_dir=str(idx_dir))
    dataset.load("test")
    for path in idx_dir.iterdir():
        path.unlink()
    assert_holds(dataset.load("train"), idx_arrays, "train")


@pytest.mark.usefixtures("_no_network")
def test_tfds_itself_reads_what_was_prepared(tmp_path, idx_dir, idx_arrays):
    fashion_mnist.prepare(tmp_path, idx_dir)
    by_name = tfds.builder("fashion_mnist", file_format="array_record", data_dir=tmp_path)
    by_path = tfds.builder_from_directory(by_name.data_dir)
    direct = tfds.data_source("fashion_mnist", split="test", data_dir=tmp_path, download=False)
    assert {name: split.num_examples for name, split in by_name.info.splits.items()} == {
        "train": 23,
        "test": 11,
    }
    assert by_name.info.features["label"].names[9] == "Ankle boot"
    for records in (by_name.as_data_source("test"), by_path.as_data_source("test"), direct):
        assert len(records) == 11
        for i, example in enumerate(records):
            np.testing.assert_array_equal(example["image"][..., 0], idx_arrays["t10k-images-idx3-ubyte"][i])
            assert example["label"] == idx_arrays["t10k-labels-idx1-ubyte"][i]


def test_the_default_directory_is_that_of_tfds(tmp_path, idx_dir, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # should this fail, the real one stays clean
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    assert FashionMNIST(idx_dir=str(idx_dir)).load("test").num_examples == 11
    assert (tmp_path / "data/fashion_mnist").is_dir()


PROCESS = """
import sys
from jaxnet.data import FashionMNIST
dataset = FashionMNIST(data_dir=sys.argv[1], idx_dir=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
print(dataset.load("train").num_examples, dataset.load("test").num_examples)
"""


@pytest.mark.processes
def test_processes_that_start_together_all_succeed(tmp_path, idx_dir, idx_arrays):
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "data"), str(idx_dir)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.communicate(timeout=120)[0] for process in processes] == ["23 11\n"] * 3
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["fashion_mnist"]
    assert_holds(FashionMNIST(data_dir=str(tmp_path / "data")).load("train"), idx_arrays, "train")


def test_a_process_that_comes_second_uses_what_the_first_wrote(tmp_path, idx_dir, idx_arrays, monkeypatch):
    write = fashion_mnist._write

    def write_late(root, splits):
        written = write(root, splits)
        monkeypatch.setattr(fashion_mnist, "_write", write)
        fashion_mnist.prepare(tmp_path / "data", idx_dir)  # another process finishes first
        return written

    monkeypatch.setattr(fashion_mnist, "_write", write_late)
    dataset = FashionMNIST(data_dir=str(tmp_path / "data"), idx_dir=str(idx_dir))
    assert_holds(dataset.load("train"), idx_arrays, "train")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["fashion_mnist"]


def test_nothing_is_left_of_a_preparation_that_failed(tmp_path, idx_dir, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fashion_mnist, "_rename", full)
    with pytest.raises(InputError, match=r"cannot be prepared in .*No space left on device.*Set data_dir"):
        FashionMNIST(data_dir=str(tmp_path / "data"), idx_dir=str(idx_dir)).load("train")
    assert not list((tmp_path / "data").rglob("*record*"))


@pytest.mark.usefixtures("_no_network")
def test_without_files_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "_DEBIAN", tmp_path / "none")
    with pytest.raises(InputError, match="apt-get install dataset-fashion-mnist") as error:
        FashionMNIST(data_dir=str(tmp_path / "data")).load("train")
    assert str(tmp_path / "data") in str(error.value)
    assert str(tmp_path / "none") in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, idx_dir):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be prepared in .*file/.*: .*Set data_dir"):
        FashionMNIST(data_dir=str(tmp_path / "file"), idx_dir=str(idx_dir)).load("train")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("t10k-images-idx3-ubyte", np.zeros((11, 28, 27)), "does not hold images of 28x28"),
        ("train-images-idx3-ubyte", np.zeros((0, 28, 28)), "does not hold images of 28x28"),
        ("train-labels-idx1-ubyte", np.zeros(22), "has 22 labels for 23 images"),
        ("train-labels-idx1-ubyte", np.full(23, 10), "holds the label 10"),
        ("train-labels-idx1-ubyte", np.zeros((23, 1)), "starts with 00000802, not 00000801"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, idx_dir, write_idx, name, array, message):
    write_idx(idx_dir / f"{name}.gz", array)
    with pytest.raises(InputError, match=message) as error:
        FashionMNIST(data_dir=str(tmp_path / "data"), idx_dir=str(idx_dir)).load("test")
    assert name in str(error.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed.")
def test_the_real_files_hold_what_is_published(tmp_path):
    dataset = FashionMNIST(data_dir=str(tmp_path))
    train, test = dataset.load("train"), dataset.load("test")
    assert np.bincount(train.label).tolist() == [6000] * 10
    assert np.bincount(test.label).tolist() == [1000] * 10
    np.testing.assert_allclose([train.image.mean() / 255, train.image.std() / 255], [0.2860, 0.3530], atol=1e-4)
