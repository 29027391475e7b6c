"""Folders of pictures: the pictures of each class, in one order everywhere, seen as photos are; and what is refused."""

import io
import itertools
import logging
import os
import random
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxnet.config.run import Config, Log
from jaxnet.data import ImageFolder, RandomSource, Shard, eval_batches, hold_out, inputs_of, train_batches
from jaxnet.data.batches import draws
from jaxnet.data.photos import EvaluationView, TrainingView
from jaxnet.data.photos.decoding import DamagedImage
from jaxnet.data.source import Inputs
from jaxnet.errors import InputError
from jaxnet.inference.predictor import read_picture
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer
from support.imagenet import image_file, photo, texture
from support.runs import train

SMALL = {"size": 16, "test_size": 16, "test_resize": 18, "threads": 2}
TRAIN = {"cat/a.jpg": photo(1), "cat/b.JPEG": photo(2), "cat/more/c.Png": image_file(texture(3), kind="PNG")}
TRAIN |= {"dog/a.jpg": photo(4, height=90, width=30), "emu/1/2/3.jpg": photo(5)}
TEST = {"dog/x.jpg": photo(6), "cat/y.jpeg": photo(7)}
NO_FOLDER = r"there is no folder .*: wanted ROOT/train/CLASS/\*\.jpg and ROOT/test/CLASS/\*\.jpg; move the pictures, or"


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def pictures(root: Path, files: dict[str, bytes] = TRAIN, test: dict[str, bytes] = TEST, **options) -> ImageFolder:
    write(root / "train", files)
    write(root / options.get("test_split", "test"), test)
    return ImageFolder(str(root), **SMALL | options)


def many(damaged: set[int] = frozenset()) -> dict[str, bytes]:
    return {f"{'ab'[i % 2]}/{i:02}.jpg": b"broken" if i in damaged else photo(i) for i in range(20)}


def names(source) -> list[str]:
    return [os.path.relpath(source.records.name(row), source.records.folder) for row in range(source.num_examples)]


def take(source, steps: int, **options) -> list[dict[str, np.ndarray]]:
    batches = train_batches(source, **{"batch_size": 8, "seed": 5, "shard": Shard(0, 1)} | options)
    try:
        return list(itertools.islice(batches, steps))
    finally:
        batches.close()


def test_classes_are_the_training_folders_and_pictures_are_sorted(tmp_path):
    dataset = pictures(tmp_path)
    source, tests = dataset.load("train"), dataset.load("test")
    assert names(source) == ["cat/a.jpg", "cat/b.JPEG", "cat/more/c.Png", "dog/a.jpg", "emu/1/2/3.jpg"]
    assert source.rows(np.arange(5))["label"].tolist() == [0, 0, 0, 1, 2]
    assert names(tests) == ["cat/y.jpeg", "dog/x.jpg"]
    assert tests.rows(np.arange(2))["label"].tolist() == [0, 1]
    assert isinstance(source, RandomSource)
    assert not isinstance(tests, RandomSource)
    assert inputs_of(tests) == Inputs((16, 16, 3), 3, ("cat", "dog", "emu"), resize=18)


@pytest.mark.parametrize("order", range(3))
def test_the_order_is_that_of_bytes_whatever_the_file_system_and_the_locale_say(tmp_path, monkeypatch, order):
    files = ["B/1.jpg", "a/10.jpg", "a/9.jpg", "a/A.jpg", "a/_.jpg", "a/b.jpg", "a/b/c.jpg", "a/ä.jpg", "é/1.jpg"]
    dataset = pictures(tmp_path, {name: photo(1) for name in files}, {"a/1.jpg": photo(1)})
    scan = os.scandir

    class Shuffled(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def shuffled(folder):
        with scan(folder) as entries:
            found = Shuffled(entries)
        random.Random(order).shuffle(found)
        return found

    monkeypatch.setattr(os, "scandir", shuffled)
    in_order = ["B/1.jpg", "a/10.jpg", "a/9.jpg", "a/A.jpg", "a/_.jpg", "a/b/c.jpg", "a/b.jpg", "a/ä.jpg", "é/1.jpg"]
    assert names(dataset.load("train")) == in_order


@pytest.mark.parametrize("test_split", ["val", "validation"])
def test_the_test_pictures_may_have_another_name(tmp_path, test_split):
    dataset = pictures(tmp_path, test_split=test_split)
    assert names(ImageFolder(str(tmp_path), **SMALL).load("test")) == names(dataset.load("test"))
    write(tmp_path / "test", {"emu/z.jpg": photo(8)})
    assert names(ImageFolder(str(tmp_path)).load("test")) == ["emu/z.jpg"]
    assert names(dataset.load("test")) == ["cat/y.jpeg", "dog/x.jpg"]


def test_a_root_in_the_home_and_other_names_of_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "album/images/training", TRAIN)
    write(tmp_path / "album/images/exam", TEST)
    dataset = ImageFolder("~/album/images", train_split="training", test_split="exam")
    assert [dataset.load(split).num_examples for split in ("train", "test")] == [5, 2]


def test_a_training_batch_holds_the_views_of_the_bytes_of_the_files(tmp_path):
    source = pictures(tmp_path).load("train")
    [batch] = take(source, 1, start_step=3)
    files = list(TRAIN.values())
    for place, draw in enumerate(draws(5, 24, 32).tolist()):
        expected = TrainingView()(files[batch["id"][place]], draw, 16)
        np.testing.assert_array_equal(batch["image"][place], expected)


def test_evaluation_sees_the_centre_of_every_picture_once(tmp_path):
    source = pictures(tmp_path).load("test")
    [batch] = eval_batches(source, batch_size=2, shard=Shard(0, 1))
    expected = [EvaluationView(16, 18)(TEST[name]) for name in ("cat/y.jpeg", "dog/x.jpg")]
    np.testing.assert_array_equal(batch["image"], expected)


@pytest.mark.parametrize("count", [2, 4])
def test_any_number_of_processes_sees_the_same_batches_with_damage_too(tmp_path, count):
    dataset = pictures(tmp_path, many(damaged={3, 8}), {"a/1.jpg": photo(1)})
    whole = take(dataset.load("train"), 6)
    parts = [take(dataset.load("train"), 2, shard=Shard(i, count), start_step=4, threads=3) for i in range(count)]
    for step in range(2):
        for key, value in whole[4 + step].items():
            np.testing.assert_array_equal(np.concatenate([part[step][key] for part in parts]), value)


def test_a_damaged_file_is_replaced_and_named_by_its_path_once(tmp_path, caplog):
    dataset = pictures(tmp_path, many(damaged={3, 8}), {"a/1.jpg": b"broken"})
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        source = dataset.load("train")
        (tmp_path / "train/a/12.jpg").unlink()
        ids = np.concatenate([batch["id"] for batch in take(source, 10)])
    damaged = {"a/08.jpg", "a/12.jpg", "b/03.jpg"}
    assert {names(source)[row] for row in source.damaged} == damaged
    assert set(range(20)) - set(ids.tolist()) == set(source.damaged)
    messages = [
        message for message in caplog.messages if str(tmp_path) in message
    ]  # a reader of another test may speak
    assert len(messages) == 3
    place = "; another example takes its place"
    assert any(m.startswith(f"{tmp_path}/train/a/12.jpg is damaged: No such file or dir") for m in messages)
    assert sum(f"is damaged: it is neither a JPEG nor a PNG image{place}" in m for m in messages) == 2
    wanted = rf"^{tmp_path}/test/a/1\.jpg is damaged: .* Every example counts in an evaluation: replace or remove the f"
    with pytest.raises(InputError, match=wanted):
        dataset.load("test").rows(np.arange(1))


def test_more_damage_than_the_budget_ends_the_run(tmp_path):
    source = pictures(tmp_path, many(damaged={3, 11, 12}), max_damaged=2).load("train")
    message = (
        r"/train/./\d+\.jpg is damaged: .* max_damaged=2 of 20 may be: replace or remove the file, or raise max_dam"
    )
    with pytest.raises(InputError, match=message):
        take(source, 10)


def test_pictures_of_every_form_are_rgb(tmp_path):
    kinds = (("CMYK", "JPEG"), ("L", "JPEG"), ("P", "PNG"), ("LA", "PNG"))
    files = {f"a/{mode}.{kind}": image_file(texture(1), mode, kind) for mode, kind in kinds}
    dataset = pictures(tmp_path, files, files)
    assert take(dataset.load("train"), 1)[0]["image"].shape == (8, 16, 16, 3)
    assert dataset.load("test").rows(np.arange(4))["image"].shape == (4, 16, 16, 3)


def test_what_is_hidden_is_passed_over_and_other_files_are_counted(tmp_path, caplog):
    hidden = dict.fromkeys(("cat/.x.jpg", "cat/.thumbs/1.jpg", ".cache/1.jpg"), b"")
    others = dict.fromkeys(("cat/z.txt", "dog/jpg", "emu/1/anim.gif", "readme.md", "top.jpg"), b"")
    dataset = pictures(tmp_path, TRAIN | hidden | others)
    os.mkfifo(tmp_path / "train/cat/pipe.jpg")
    with caplog.at_level(logging.WARNING, logger="jaxnet"):
        assert names(dataset.load("train")) == list(TRAIN)
    [message] = caplog.messages
    assert message == (
        f"3 files are left out, {tmp_path}/train/emu/1/anim.gif among them: they are not named .jpg, .jpeg or .png"
    )


def test_links_are_followed_but_not_in_circles(tmp_path):
    write(tmp_path / "elsewhere", {"1.jpg": photo(1), "more/2.jpg": photo(2)})
    dataset = pictures(tmp_path)
    (tmp_path / "train/cat/d.jpg").symlink_to(tmp_path / "elsewhere/1.jpg")
    (tmp_path / "train/cat/e").symlink_to(tmp_path / "elsewhere/more")
    (tmp_path / "train/fox").symlink_to(tmp_path / "elsewhere")
    source = dataset.load("train")
    assert len(source.records.class_names) == 4
    assert {"cat/d.jpg", "cat/e/2.jpg", "fox/1.jpg", "fox/more/2.jpg"} <= set(names(source))
    (tmp_path / "elsewhere/more/up").symlink_to(tmp_path / "elsewhere/more/..")
    with pytest.raises(InputError, match=r"cat/e/up/more is a link to a folder that it lies in: remove it"):
        dataset.load("train")
    (tmp_path / "elsewhere/more/up").unlink()
    (tmp_path / "train/cat/round").symlink_to(tmp_path / "train/cat/round")
    with pytest.raises(InputError, match=r"train/cat/round cannot be listed: Too many levels of symbolic links; mend"):
        dataset.load("train")


def test_a_link_to_nothing_is_named(tmp_path):
    dataset = pictures(tmp_path)
    (tmp_path / "test/cat/gone.jpg").symlink_to(tmp_path / "nothing")
    dataset.load("train")
    with pytest.raises(InputError, match=r"/test/cat/gone\.jpg is a link to nothing: mend or remove it"):
        dataset.load("test")


@pytest.mark.parametrize(
    ("made", "split", "message"),
    [
        ([], "train", NO_FOLDER),
        (["album/"], "train", r"there is no folder .*/album/train, .*/album holds nothing: wanted"),
        (["album"], "train", r"there is no folder .*/album: wanted"),
        ([f"album/{c}/1.jpg" for c in "abcdef"], "train", r"train, .*album holds a, b, c, d and 2 more: wanted"),
        (["album/train/1.jpg"], "train", r"album/train has no folders of classes, it holds 1.jpg: wanted"),
        (["album/train/a/1.jpg"], "test", r"there is no folder .*/album/test, .*/album holds train: wanted"),
        (["album/train/a/1.jpg"], "dev", r"there is no folder .*/album/dev, .*/album holds train: wanted"),
        (["album/train/a/1.jpg", "album/test/1.jpg"], "test", r"album/test has no folders of classes, it holds 1.jpg"),
        (["album/train/a/1.webp"], "train", r"album/train/a holds no pictures, it holds 1.webp: wanted files named"),
        (["album/train/a/1.jpg", "album/train/b/"], "train", r"album/train/b holds no pictures, it holds nothing: wan"),
        (
            ["album/train/a/1.jpg", "album/train/c/1.jpg", "album/test/b/1.jpg"],
            "test",
            r"album/test/b is a class without training pictures: .*/album/train has a, c; rename or remove it, or add",
        ),
    ],
)
def test_another_layout_is_refused_with_what_is_there(tmp_path, made, split, message):
    for name in made:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            write(tmp_path, {name: photo(1)})
    with pytest.raises(InputError, match=message):
        ImageFolder(str(tmp_path / "album")).load(split)


def refuse(monkeypatch, place, name: str) -> None:
    """A place that its owner has closed; the tests may be root's, who may do anything."""
    given = getattr(place, name)

    def closed(path, *arguments):
        if "cat" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return given(path, *arguments)

    monkeypatch.setattr(place, name, closed)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    dataset = pictures(tmp_path)
    refuse(monkeypatch, os, "scandir")
    with pytest.raises(InputError, match=r"/train/cat cannot be listed: Permission denied; mend or remove it"):
        dataset.load("train")


def test_a_first_file_that_cannot_be_read_is_named_at_once(tmp_path, monkeypatch):
    dataset = pictures(tmp_path)
    refuse(monkeypatch, Path, "read_bytes")
    with pytest.raises(InputError, match=r"/train/cat/a\.jpg cannot be read \(Permission denied\): replace or remove"):
        dataset.load("train")


def test_a_path_takes_little_memory(tmp_path):
    source = pictures(tmp_path, {f"cat/{i:06}_some_picture.jpg": photo(1) for i in range(1000)}).load("train")
    records = source.records
    held = sys.getsizeof(records.paths) + records.starts.nbytes + records.label.nbytes
    assert held < 1000 * (len("000000_some_picture.jpg") + 13)


@pytest.mark.parametrize(
    "change", [{"size": 0}, {"threads": 0}, {"max_damaged": -1}, {"test_size": 300, "test_resize": 256}]
)
def test_numbers_out_of_range_are_refused(change):
    with pytest.raises(InputError, match="must be"):
        ImageFolder("album", **change)


def test_a_run_learns_dark_from_bright(tmp_path):
    draw = np.random.RandomState(0)
    for split, count in (("train", 32), ("val", 8)):
        for name, least in (("bright", 150), ("dark", 0)):
            shades = draw.randint(least, least + 100, (count, 30, 40, 3)).astype(np.uint8)
            write(tmp_path / split / name, {f"{i}.jpg": image_file(shade) for i, shade in enumerate(shades)})
    (tmp_path / "train/dark/3.jpg").write_bytes(b"broken")
    config = Config(
        model=CNN(2, widths=(4,), hidden=4),
        data=ImageFolder(str(tmp_path), **SMALL),
        epochs=5,
        batch_size=16,
        eval_batch_size=8,
        optimizer=Optimizer("sgd", learning_rate=0.1),
        log=Log(tensorboard=False),
    )
    summary = train(config, tmp_path / "run", quiet=True)
    assert (summary["accuracy"], summary["examples"], summary["damaged_records"]) == (1, 16, 1)


def test_the_test_pictures_choose_nothing(tmp_path):
    with pytest.raises(InputError, match=r"val holds the test pictures, which choose nothing: set data.test_split"):
        pictures(tmp_path, test_split="val").load("val")
    write(tmp_path / "test", TEST)
    assert ImageFolder(str(tmp_path), **SMALL).load("val").num_examples == len(TEST)


# ---- Turned pictures ----------------------------------------------------------------------------------------


def turned(orientation: int, height: int = 24, width: int = 36) -> bytes:
    """A picture, without loss, whose EXIF data say how it is to be turned."""
    pixels = np.random.RandomState(0).randint(0, 256, (height, width, 3)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("height", [36, 37])  # of an odd margin the centre lies a pixel beside
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_seen_as_predict_sees_it(tmp_path, orientation, height):
    files = {"cat/a.png": turned(orientation, height=height)}
    options = {"size": 16, "test_size": 16, "test_resize": 24, "threads": 1}
    write(tmp_path / "train", files)
    write(tmp_path / "test", files)
    source = ImageFolder(str(tmp_path), **options).load("test")
    seen = read_picture(tmp_path / "test/cat/a.png", inputs_of(source))
    np.testing.assert_array_equal(source.rows(np.array([0]))["image"][0], seen)


def test_a_random_part_of_a_turned_picture_is_turned(tmp_path):
    view = TrainingView(area=(0.999, 1.0), ratio=(1.0, 1.0), flip=False)
    parts = []
    for orientation in (1, 6):
        root = tmp_path / str(orientation)
        for split in ("train", "test"):
            write(root / split, {"cat/a.png": turned(orientation, 32, 32)})
        source = ImageFolder(str(root), size=32, test_size=16, test_resize=18, view=view).load("train")
        parts.append(source.random_rows(np.array([0]), np.array([7], np.uint64))["image"][0])
    np.testing.assert_array_equal(parts[1], np.rot90(parts[0], -1))


def test_broken_exif_data_turn_nothing(tmp_path):
    data = photo(1)
    broken = data[:2] + b"\xff\xe1\x00\x10Exif\x00\x00II*\x00\xff\xff\xff\xff" + data[2:]
    files = {"cat/a.jpg": broken, "cat/b.jpg": data}
    source = pictures(tmp_path, files, {"cat/y.jpg": data}).load("train")
    rows = source.rows(np.arange(2))["image"]
    np.testing.assert_array_equal(rows[0], rows[1])


def test_one_broken_tag_leaves_the_orientation(tmp_path):
    """Training, evaluation and predict turn alike, even where the EXIF data cannot be written again."""
    data = photo(1)
    orientation = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    software = struct.pack("<HHIf", 0x0131, 11, 1, 1.5)  # a number in the place of a text
    for name, tags in (("upright", []), ("turned", [orientation]), ("broken", [orientation, software])):
        exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + b"".join(tags) + bytes(4)
        made = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
        write(tmp_path, {f"{split}/cat/{name}.jpg": made for split in ("train", "test")})
    options = {"size": 16, "test_size": 16, "test_resize": 16, "threads": 1}
    dataset = ImageFolder(str(tmp_path), **options, view=TrainingView(flip=False))
    broken, turned, upright = dataset.load("test").rows(np.arange(3))["image"]
    np.testing.assert_array_equal(broken, turned)
    assert (broken != upright).any()
    inputs = inputs_of(dataset.load("test"))
    np.testing.assert_array_equal(read_picture(tmp_path / "test/cat/broken.jpg", inputs), broken)
    broken, turned, upright = dataset.load("train").random_rows(np.arange(3), np.full(3, 7, np.uint64))["image"]
    np.testing.assert_array_equal(broken, turned)
    np.testing.assert_array_equal(broken, np.rot90(upright, -1))


def test_what_is_held_back_is_seen_as_a_test_is(tmp_path):
    write(tmp_path / "train", many())
    dataset = ImageFolder(str(tmp_path), size=16, test_size=24, test_resize=24)
    train, held = hold_out(dataset.load("train"), 0.2)
    assert train.image_shape == (16, 16, 3)
    row = held.rows(np.array([0]))
    assert row["image"].shape[1:] == held.image_shape == (24, 24, 3)
    whole = dataset.load("train").evaluated().rows(np.arange(dataset.load("train").num_examples))
    assert any((row["image"][0] == image).all() for image in whole["image"])


def test_a_picture_that_is_long_and_thin_is_damaged(tmp_path):
    with pytest.raises(DamagedImage, match="2x60000 pixels are too long and thin for a square of side 16"):
        EvaluationView(16, 100)(turned(1, height=60000, width=2))
