"""Photos in training: the same crops however many processes there are, and damage within a budget."""

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxnet.data import ImageNet, Photos, RandomSource, Shard, eval_batches, train_batches
from jaxnet.data.batches import draws
from jaxnet.data.photos import EvaluationView, RandAugment, TrainingView
from jaxnet.data.photos.source import PhotoRecords
from jaxnet.data.prepare import prepare_imagenet
from jaxnet.data.source import Inputs, inputs_of
from jaxnet.errors import InputError
from support.imagenet import damage_a_record, image_file, photo, photos, texture, write_archives

pytestmark = pytest.mark.usefixtures("_no_network")
SMALL = {"size": 16, "test_size": 16, "test_resize": 18}
LABEL = tfds.features.ClassLabel(num_classes=7)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory) -> ImageNet:
    root = tmp_path_factory.mktemp("imagenet")
    write_archives(root / "archives", photos(7), validation=5)
    prepare_imagenet(root / "archives", str(root / "data"), allow_partial=True, num_shards=2)
    return ImageNet(str(root / "data"), **SMALL, threads=2)


def write(root: Path, files: list[bytes], features: dict | None = None) -> str:
    """Write a data set 'album' of these image files; the label of the i-th is i % 7."""
    directory = root / "album/1.0.0"
    directory.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(name="album", version="1.0.0", data_dir=str(directory), module_name="album")
    features = features or {"image": tfds.features.Image(), "label": LABEL}
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=10, file_format="array_record")
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"image": file, "label": i % 7} for i, file in enumerate(files)]})
    writer.close_all()
    return str(root)


def album(root: Path, files: list[bytes], **options) -> Photos:
    fields = {"data_dir": write(root, files), "test_split": "train"} | SMALL | options
    return Photos("album", **fields)


def with_damage(count: int, damaged: set[int]) -> list[bytes]:
    return [b"broken" if i in damaged else photo(i) for i in range(count)]


def take(source, steps: int, **options) -> list[dict[str, np.ndarray]]:
    options = {"batch_size": 8, "seed": 5, "shard": Shard(0, 1)} | options
    batches = train_batches(source, **options)
    try:
        return list(itertools.islice(batches, steps))
    finally:
        batches.close()


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        assert left[key].dtype == right[key].dtype
        np.testing.assert_array_equal(left[key], right[key])


def test_a_training_batch_holds_the_views_that_its_draws_say(imagenet):
    source = imagenet.load("train")
    assert (source.num_examples, source.num_classes, source.image_shape) == (21, 1000, (16, 16, 3))
    assert isinstance(source, RandomSource)
    [batch] = take(source, 1, start_step=3)
    assert {key: (value.dtype.name, value.shape) for key, value in batch.items()} == {
        "image": ("uint8", (8, 16, 16, 3)),
        "label": ("int32", (8,)),
        "id": ("int32", (8,)),
    }
    for place, draw in enumerate(draws(5, 24, 32).tolist()):
        data, label = source.records.read(int(batch["id"][place]))
        np.testing.assert_array_equal(batch["image"][place], TrainingView()(data, draw, 16))
        assert batch["label"][place] == label


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_processes_sees_the_same_images_also_after_a_restart(imagenet, count, threads):
    source = imagenet.load("train")
    whole = take(source, 6, threads=1)
    for start_step in (0, 4):
        parts = [take(source, 2, shard=Shard(i, count), start_step=start_step, threads=threads) for i in range(count)]
        for step in range(2):
            several = [part[step] for part in parts]
            joined = {key: np.concatenate([part[key] for part in several]) for key in several[0]}
            assert_equal(joined, whole[start_step + step])


def test_an_example_is_seen_differently_in_each_epoch_and_with_each_seed(imagenet):
    source = imagenet.load("train")
    batches = take(source, 3, batch_size=21) + take(source, 1, batch_size=21, seed=6)
    by_id = [dict(zip(b["id"].tolist(), (i.tobytes() for i in b["image"]), strict=True)) for b in batches]
    assert all(set(images) == set(range(21)) for images in by_id)
    for row in range(21):
        assert len({images[row] for images in by_id}) == 4


def test_evaluation_sees_every_photo_once_as_pillow_shows_it(imagenet):
    source = imagenet.load("test")
    assert not isinstance(source, RandomSource)
    assert inputs_of(source) == Inputs((16, 16, 3), 1000, source.class_names, resize=18)
    assert source.class_names[:2] == ("n01440764", "n01443537")
    batches = list(eval_batches(source, batch_size=2, shard=Shard(0, 1)))
    assert np.concatenate([b["weight"] for b in batches]).tolist() == [1, 1, 1, 1, 1, 0]
    labels = {1000: 65, 1001: 970, 1002: 230, 1003: 809, 1004: 516}
    expected = {EvaluationView(16, 18)(photo(seed)).tobytes(): label for seed, label in labels.items()}
    found = {i.tobytes(): int(label) for b in batches for i, label in zip(b["image"], b["label"], strict=True)}
    assert found == expected


def test_another_size_gives_the_same_crops_and_shares_the_account(imagenet):
    source = imagenet.load("train")
    large = source.at_size(32)
    assert large.image_shape == (32, 32, 3)
    small_batch, large_batch = take(source, 1)[0], take(large, 1)[0]
    np.testing.assert_array_equal(small_batch["id"], large_batch["id"])
    shrunk = large_batch["image"].reshape(8, 16, 2, 16, 2, 3).mean((2, 4))
    assert abs(shrunk - small_batch["image"]).mean() < 8
    assert large.damaged is source.damaged


def test_the_centre_of_training_photos_needs_no_randomness(imagenet):
    source = imagenet.load("train")
    rows = source.rows(np.array([4, 0]))
    np.testing.assert_array_equal(rows["image"][0], EvaluationView(16, 18)(source.records.read(4)[0]))


def test_a_source_says_how_many_threads_pay(imagenet):
    assert imagenet.load("train").threads == imagenet.load("test").threads == 2
    assert ImageNet(imagenet.data_dir, **SMALL).load("train").threads >= 1


def test_damaged_records_are_replaced_the_same_way_everywhere_and_named_once(tmp_path, caplog):
    broken = {3, 11, 12}
    dataset = album(tmp_path, with_damage(20, broken), view=TrainingView(randaugment=RandAugment(1, 9)))
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        source = dataset.load("train")
        whole = take(source, 10)
    assert set(source.damaged) == broken
    assert len(caplog.messages) == 3
    assert all("is neither a JPEG nor a PNG image; another example takes its place" in m for m in caplog.messages)
    assert any(message.startswith("record 11 of the data set album, train, in ") for message in caplog.messages)
    ids = np.concatenate([batch["id"] for batch in whole])
    assert not set(ids) & broken
    np.testing.assert_array_equal(np.concatenate([batch["label"] for batch in whole]), ids % 7)
    for i in range(2):
        part = take(dataset.load("train"), 2, shard=Shard(i, 2), start_step=4, threads=3)
        for step in range(2):
            assert_equal(part[step], {key: value[4 * i : 4 * i + 4] for key, value in whole[4 + step].items()})


def test_sound_examples_are_not_changed_by_damaged_ones(tmp_path):
    sound = take(album(tmp_path / "sound", with_damage(20, set())).load("train"), 3)
    damaged = take(album(tmp_path / "damaged", with_damage(20, {3, 11})).load("train"), 3)
    for left, right in zip(sound, damaged, strict=True):
        same = left["id"] == right["id"]
        assert set(left["id"][~same]) <= {3, 11}
        np.testing.assert_array_equal(left["image"][same], right["image"][same])


@pytest.mark.parametrize("threads", [1, 2])
def test_more_damage_than_the_budget_ends_the_run_with_one_error(tmp_path, threads):
    source = album(tmp_path, with_damage(20, {3, 11, 12}), max_damaged=2).load("train")
    message = r"record \d+ of the data set album.* is damaged: .* It is the 3th, and max_damaged=2 of 20 may be"
    with pytest.raises(InputError, match=message):
        take(source, 10, threads=threads)
    with pytest.raises(InputError, match="max_damaged=2"):  # and it stays ended
        take(source, 10, threads=threads)


def test_a_set_with_nothing_sound_in_it_ends_too(tmp_path):
    with pytest.raises(InputError, match="is damaged"):
        take(album(tmp_path, [b"broken"] * 3).load("train"), 1)


def test_a_damaged_record_ends_an_evaluation(tmp_path):
    source = album(tmp_path, with_damage(6, {4})).load("test")
    with pytest.raises(InputError, match=r"record 4 of .* is damaged: .* Every example counts in an evaluation"):
        list(eval_batches(source, batch_size=3, shard=Shard(0, 1)))


def test_records_that_cannot_be_read_are_damaged(tmp_path):
    noise = np.random.RandomState(0).randint(0, 256, (40, 40, 40, 3)).astype(np.uint8)
    dataset = album(tmp_path, [image_file(pixels) for pixels in noise])
    damage_a_record(sorted(tmp_path.glob("album/1.0.0/*array_record*"))[2])
    source = dataset.load("train")
    take(source, 8)
    assert 1 <= len(source.damaged) <= 10


def test_a_label_that_is_no_class_ends_the_run(tmp_path):
    """TFDS gives -1 to examples without a label; one_hot would make a target of zeros from it."""
    records = PhotoRecords([{"image": photo(1), "label": -1}], 7, origin="album")
    with pytest.raises(
        InputError, match=r"labels of record 0 of album must be 0 .. 6 for 7 classes, got -1 .. -1; TFDS"
    ):
        records.read(0)


def test_photos_of_every_form_are_rgb(tmp_path):
    files = [image_file(texture(1), mode, kind) for mode, kind in (("CMYK", "JPEG"), ("L", "JPEG"), ("P", "PNG"))]
    [batch] = take(album(tmp_path, files).load("train"), 1, batch_size=3)
    assert batch["image"].shape == (3, 16, 16, 3)


def test_files_that_are_missing_are_found_at_once(tmp_path):
    dataset = album(tmp_path, with_damage(30, set()))
    sorted(tmp_path.glob("album/1.0.0/*array_record*"))[1].unlink()
    with pytest.raises(InputError, match=r"1 of its 3 files are missing, album-train.array_record-00001"):
        dataset.load("train")


def test_imagenet_that_is_not_prepared_says_how(tmp_path):
    with pytest.raises(InputError, match=rf"jaxnet data prepare imagenet2012 --manual-dir .* --data-dir {tmp_path}"):
        ImageNet(str(tmp_path)).load("train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_split": "nothing"}, "album has no split 'nothing'.* Set train_split and test_split"),
        ({"image_key": "label"}, "'label' must be an Image and 'label' a ClassLabel, but its features are"),
        ({"label_key": "nothing"}, "set image_key and label_key"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        album(tmp_path, [photo(1)], **change).load("test")


@pytest.mark.parametrize(
    ("given", "seen"),
    [({}, (224, 256)), ({"size": 64}, (64, 73)), ({"size": 299}, (299, 342)), ({"size": 9, "test_size": 70}, (70, 80)),
     ({"size": 227, "test_resize": 256}, (227, 256))],
)  # fmt: skip
def test_the_sizes_of_test_pictures_follow_that_of_training(given, seen):
    view = ImageNet(**given).test_view
    assert (view.size, view.resize) == seen


@pytest.mark.parametrize(
    "change", [{"size": 0}, {"threads": 0}, {"max_damaged": -1}, {"test_size": 300, "test_resize": 256}]
)
def test_numbers_out_of_range_are_refused(change):
    with pytest.raises(InputError, match="must be"):
        ImageNet(**change)
