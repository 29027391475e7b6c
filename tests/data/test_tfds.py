"""Prepared TFDS data sets are read without TensorFlow; what is not there is refused at once."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from jaxnet.config.file import load_config
from jaxnet.data import TFDS, ArraySource, FashionMNIST, RecordSource, Shard, eval_batches, train_batches
from jaxnet.errors import InputError
from support.pngs import packed
from support.programs import ROOT
from support.runs import train

pytestmark = pytest.mark.usefixtures("_no_network")
LABEL = tfds.features.ClassLabel(num_classes=5)


def encoded(array: np.ndarray, mode: str | None = None) -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(array)
    (picture.convert(mode) if mode else picture).save(file, "PNG")
    return file.getvalue()


def prepare(root: Path, features: dict, examples: list[dict], per_file: int = 100, at: str = "toy/1.0.0") -> None:
    """Write a data set with one split, 'train'."""
    directory, (name, version) = root / at, at.split("/")
    directory.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(name=name, version=version, data_dir=str(directory), module_name=name)
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=per_file, file_format="array_record")
    writer.initialize_splits(["train"])
    writer.add_examples({"train": examples})
    writer.close_all()


@pytest.fixture
def colours() -> np.ndarray:
    return np.random.RandomState(1).randint(0, 256, (17, 6, 4, 3)).astype(np.uint8)


@pytest.fixture
def toy(tmp_path: Path, colours: np.ndarray) -> TFDS:
    features = {"picture": tfds.features.Image(shape=(6, 4, 3)), "kind": LABEL, "text": tfds.features.Text()}
    examples = [{"picture": encoded(c), "kind": i % 5, "text": "hm"} for i, c in enumerate(colours)]
    prepare(tmp_path, features, examples, per_file=5)
    keys = {"image_key": "picture", "label_key": "kind"}
    return TFDS("toy", data_dir=str(tmp_path), test_split="train[:25%]", **keys)


def rewrite(dataset: TFDS, change) -> None:
    path = Path(dataset.data_dir, "toy/1.0.0/dataset_info.json")
    path.write_text(change(path.read_text()))


def test_a_prepared_set_is_read_into_memory(toy, colours):
    source = toy.load("train")
    assert isinstance(source, ArraySource)
    assert (source.num_examples, source.num_classes, source.image_shape) == (17, 5, (6, 4, 3))
    np.testing.assert_array_equal(source.image, colours)
    np.testing.assert_array_equal(source.label, np.arange(17) % 5)


def test_a_split_may_be_a_part(toy, colours):
    np.testing.assert_array_equal(toy.load("test").image, colours[:4])


def test_a_set_too_large_for_memory_is_read_from_disk(toy, colours):
    limit = colours.nbytes
    exact = TFDS(**vars(toy) | {"in_memory_bytes": limit}).load("train")
    source = TFDS(**vars(toy) | {"in_memory_bytes": limit - 1}).load("train")
    assert isinstance(exact, ArraySource)
    assert isinstance(source, RecordSource)
    picked = np.array([16, 0, 7, 7])
    assert source.rows(picked).keys() == exact.rows(picked).keys()
    for key, value in exact.rows(picked).items():
        assert source.rows(picked)[key].dtype == value.dtype
        np.testing.assert_array_equal(source.rows(picked)[key], value)
    assert (source.num_examples, source.num_classes, source.image_shape) == (17, 5, (6, 4, 3))


@pytest.mark.parametrize("in_memory_bytes", [0, 2**30])
def test_numbers_of_any_features(tmp_path, in_memory_bytes):
    features = {
        "row": tfds.features.Tensor(shape=(3,), dtype=np.float64),
        "label": LABEL,
        "text": tfds.features.Text(),
        "many": tfds.features.Sequence(np.int32),
    }
    table = np.random.RandomState(0).standard_normal((7, 3))
    examples = [{"row": row, "label": i % 5, "text": "hm", "many": [1] * i} for i, row in enumerate(table)]
    prepare(tmp_path, features, examples)
    data = TFDS("toy", data_dir=str(tmp_path), features=("row", "label"), in_memory_bytes=in_memory_bytes)
    source = data.load("train")
    assert hasattr(source, "num_classes") == (in_memory_bytes > 0)
    rows = source.rows(np.array([6, 2]))
    np.testing.assert_array_equal(rows["row"], table[[6, 2]].astype(np.float32))
    assert rows["label"].tolist() == [1, 2]
    for key in ("text", "many"):
        with pytest.raises(InputError, match=f"toy: features={key}: wanted numbers of one shape, and it is"):
            TFDS("toy", data_dir=str(tmp_path), features=(key,)).load("train")
    with pytest.raises(InputError, match="toy has no split 'test'"):
        data.load("test")


class Few(list):
    def __getitems__(self, keys):
        return [self[key] for key in keys]


def test_labels_that_are_no_class_are_refused_from_disk_too():
    records = Few({"image": np.zeros((2, 2, 1), np.uint8), "label": label} for label in (0, -1, 4))
    source = RecordSource(records, 5, (2, 2, 1), origin="toy")
    assert source.rows(np.array([0, 2]))["label"].tolist() == [0, 4]
    with pytest.raises(InputError, match=r"labels of toy must be 0 .. 4 for 5 classes, got -1 .. 0; TFDS gives -1"):
        source.rows(np.array([0, 1]))


def test_sixteen_bits_become_eight():
    wide = np.array([[0, 256], [40_000, 65_535]], np.uint16)
    source = RecordSource(Few([{"image": encoded(wide), "label": 0}]), 5, (2, 2, 1))
    np.testing.assert_array_equal(source.rows(np.array([0]))["image"][0, ..., 0], wide >> 8)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_from_disk_are_those_from_memory(toy, threads):
    memory = toy.load("train")
    disk = TFDS(**vars(toy) | {"in_memory_bytes": 0}).load("train")
    options = {"batch_size": 10, "shard": Shard(1, 2)}
    evaluated = (eval_batches(source, threads=threads, **options) for source in (memory, disk))
    trained = (train_batches(source, threads=threads, seed=5, start_step=3, **options) for source in (memory, disk))
    left, right = trained
    pairs = [*zip(*evaluated, strict=True), *((next(left), next(right)) for _ in range(8))]
    for one, other in pairs:
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])
    left.close()
    right.close()


def test_images_may_be_stored_as_arrays(tmp_path, colours):
    features = {"image": tfds.features.Tensor(shape=(6, 4, 3), dtype=np.uint8), "label": LABEL}
    prepare(tmp_path, features, [{"image": c, "label": 3} for c in colours])
    np.testing.assert_array_equal(TFDS("toy", data_dir=str(tmp_path)).load("train").image, colours)


def test_pictures_are_brought_to_the_channels_that_are_declared(tmp_path, colours):
    features = {"image": tfds.features.Image(shape=(6, 4, 3)), "label": LABEL}
    grey, palette = colours[0, ..., 0], np.repeat(colours[1, :1, :1], 24, axis=0).reshape(6, 4, 3)
    prepare(
        tmp_path,
        features,
        [{"image": encoded(grey), "label": 0}, {"image": encoded(palette, "P"), "label": 1}],
    )
    image = TFDS("toy", data_dir=str(tmp_path)).load("train").image
    np.testing.assert_array_equal(image[0], np.repeat(grey[..., None], 3, axis=-1))
    assert image.shape == (2, 6, 4, 3)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"image": tfds.features.Image(shape=(None, None, 3)), "label": LABEL},
            "of one fixed size, but 'image'",
        ),
        ({"image": tfds.features.Image(shape=(6, 4, 1), dtype=np.uint16), "label": LABEL}, "must be uint8"),
        ({"image": LABEL, "label": LABEL}, "must be uint8"),
        ({"image": {"left": LABEL}, "label": LABEL}, "must be uint8"),
        ({"image": tfds.features.Image(shape=(6, 4, 3)), "label": tfds.features.Text()}, "not a ClassLabel"),
        (
            {"picture": tfds.features.Image(shape=(6, 4, 3)), "label": LABEL},
            "no feature 'image': it has label, p",
        ),
    ],
)
def test_features_that_are_not_images_with_labels_are_refused(tmp_path, features, message):
    prepare(tmp_path, features, [])
    with pytest.raises(InputError, match=message):
        TFDS("toy", data_dir=str(tmp_path)).load("train")


def test_a_set_that_is_not_prepared_is_refused_at_once(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cifar10 is not prepared in") as error:
        TFDS("cifar10", data_dir=str(tmp_path)).load("train")
    command = f"tfds.builder('cifar10', data_dir='{tmp_path}', file_format='array_record').download_and_prepare()"
    assert command in str(error.value)
    assert f"{tmp_path}/cifar10/" in str(error.value)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "from_environment"))
    with pytest.raises(InputError, match="from_environment/cifar10"):
        TFDS("cifar10").load("test")
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(InputError, match="home/tensorflow_datasets/cifar10"):
        TFDS("cifar10").load("test")


def test_another_version_on_disk_is_pointed_out(tmp_path):
    (tmp_path / "cifar10/1.0.0").mkdir(parents=True)
    with pytest.raises(InputError, match=r"\(there is version 1.0.0: ask for it as 'cifar10:...'\)"):
        TFDS("cifar10", data_dir=str(tmp_path)).load("train")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar11", "knows no data set 'cifar11', and none is prepared in .*names near it: .*cifar10"),
        ("toys", "knows no data set 'toys', .* names near it: toy"),
        ("qqqqqq", "knows no data set 'qqqqqq'.*$"),
        (
            "cifar10:1.0.0",
            "cannot open 'cifar10:1.0.0' in .*: Dataset cifar10 cannot be loaded at version 1.0.0",
        ),
        ("huggingface:mnist", "is not of the form 'name', 'name/config' or 'name:1.2.3'"),
        ("mnist/a=3", "is not of the form"),
        ("", "data set name '' is not of the form"),
    ],
)
def test_a_name_that_cannot_be_is_refused(toy, name, message):
    with pytest.raises(InputError, match=message) as error:
        TFDS(name, data_dir=toy.data_dir).load("train")
    assert "\n" not in str(error.value)
    assert "builder_kwargs" not in str(error.value)


def test_a_set_without_random_access_is_refused(toy):
    rewrite(toy, lambda text: text.replace('"array_record"', '"tfrecord"'))
    with pytest.raises(InputError, match=r"prepared as tfrecord, which has no random access. Prepare it as array"):
        toy.load("train")


def test_fashion_mnist_without_random_access_is_refused(tmp_path, idx_dir):
    dataset = FashionMNIST(data_dir=str(tmp_path), idx_dir=str(idx_dir))
    dataset.load("test")
    [path] = tmp_path.glob("fashion_mnist/*/dataset_info.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(InputError, match="prepared as tfrecord, which has no random access"):
        dataset.load("test")


def test_splits_that_are_not_there_are_refused(toy):
    for split in ("validation", "train[:0]", "train[:1"):
        with pytest.raises(InputError, match=r"no split .* Set train_split and test_split"):
            TFDS(**vars(toy) | {"train_split": split}).load("train")
    with pytest.raises(InputError, match="toy has no split 'validation': Unknown split"):
        toy.load("validation")
    assert toy.load("train[:3]").num_examples == 3


@pytest.mark.parametrize("in_memory_bytes", [0, 2**30])
def test_files_that_are_missing_or_cut_short_are_found_at_once(toy, in_memory_bytes):
    dataset = TFDS(**vars(toy) | {"in_memory_bytes": in_memory_bytes})
    path = sorted(Path(toy.data_dir).glob("toy/1.0.0/*array_record*"))[0]
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-100]), path.unlink):
        damage()
        with pytest.raises(InputError, match=r"is damaged: .* Remove its directory and prepare it again"):
            dataset.load("train")


def test_a_damaged_description_is_refused(toy):
    rewrite(toy, lambda text: text[:40])
    with pytest.raises(InputError, match="TFDS cannot open 'toy'"):
        toy.load("train")


def test_a_record_that_is_damaged_is_found_when_it_is_read(tmp_path):
    noise = np.random.RandomState(2).randint(0, 256, (40, 32, 32, 3)).astype(np.uint8)
    features = {"image": tfds.features.Image(shape=(32, 32, 3)), "label": LABEL}
    prepare(tmp_path, features, [{"image": encoded(image), "label": 0} for image in noise])
    [path] = tmp_path.glob("toy/1.0.0/*array_record*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    source = TFDS("toy", data_dir=str(tmp_path), in_memory_bytes=0).load("train")
    with pytest.raises(InputError, match=rf"the data set toy in {tmp_path}/toy/1.0.0 is damaged: .* prepare it again"):
        list(eval_batches(source, batch_size=8, shard=Shard(0, 1)))


def test_a_picture_whose_data_end_early_is_damaged():
    pixels = np.arange(1, 65, dtype=np.uint8).reshape(8, 8)
    records = Listed([{"image": packed(pixels, rows=rows), "label": 0} for rows in (None, 5)])
    source = RecordSource(records, 1, (8, 8, 1))
    np.testing.assert_array_equal(source.rows(np.array([0]))["image"][0, :, :, 0], pixels)
    with pytest.raises(InputError, match="the data set is damaged: it ends before its last row"):
        source.rows(np.array([1]))


class Listed(list):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.slow
def test_the_config_of_cifar10_trains_on_what_tfds_prepares(tmp_path):
    pixels = np.random.RandomState(2).randint(0, 256, (40, 32, 32, 3)).astype(np.uint8)
    features = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    examples = [{"id": str(i), "image": encoded(image), "label": i % 10} for i, image in enumerate(pixels)]
    prepare(tmp_path, features, examples, at=f"cifar10/{tfds.builder('cifar10', data_dir=tmp_path).version}")
    overrides = [f"data.data_dir={tmp_path}", "data.test_split=train[:8]", "batch_size=8", "eval_batch_size=8"]
    config = load_config(ROOT / "configs/cifar10_resnet20.py", *overrides, "epochs=0.4", "model.width=0.5")
    summary = train(config, tmp_path / "run", quiet=True)
    assert (summary["steps"], summary["finished"]) == (2, True)
