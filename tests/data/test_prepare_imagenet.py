"""Miniatures of the ImageNet archives are prepared as TFDS prepares them; wrong archives are refused."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from jaxnet.data.prepare import PrepareListener, imagenet, prepare_imagenet, shards, verify
from jaxnet.data.prepare.tars import TRAIN, VALIDATION
from jaxnet.errors import InputError
from support.imagenet import (
    SYNSETS,
    damage_a_record,
    image_file,
    photo,
    photos,
    tar_of,
    texture,
    write_archives,
    write_tar,
)

pytestmark = pytest.mark.usefixtures("_no_network")
SOME_LABELS = [65, 970, 230, 809, 516, 57]  # of the first validation images, as the world knows them


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    write_archives(tmp_path / "archives", photos())
    return tmp_path / "archives"


def prepared(archives: Path, name: str = "data", **options):
    return prepare_imagenet(archives, str(archives.parent / name), **{"allow_partial": True} | options)


def read_back(archives: Path, split: str, name: str = "data") -> dict[str, tuple[int, bytes]]:
    """Return what TFDS's own builder reads: label and file by name, in its order."""
    builder = tfds.builder("imagenet2012", data_dir=archives.parent / name)
    source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
    return {example["file_name"].decode(): (example["label"], example["image"]) for example in source}


def test_the_stock_builder_reads_every_image_with_its_label(archives):
    done = prepared(archives, num_shards=2)
    assert done == (archives.parent / "data/imagenet2012/5.1.0", {"train": 18, "validation": 6}, {}, {})
    expected = {name: (label, f) for label, s in enumerate(SYNSETS) for name, f in photos()[s].items()}
    assert read_back(archives, "train") == expected
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 7)]
    wanted = {name: (SOME_LABELS[i], photo(1000 + i)) for i, name in enumerate(names)}
    assert read_back(archives, "validation") == wanted
    assert "tensorflow" not in sys.modules


def test_order_and_files_are_those_of_tfds_own_writer(archives, tmp_path):
    prepared(archives, num_shards=2)
    builder = tfds.builder("imagenet2012", data_dir=tmp_path / "reference", file_format="array_record")
    info = builder.info
    (tmp_path / "reference").mkdir()
    writer = tfds.core.writer.Writer(
        serializer=tfds.core.example_serializer.ExampleSerializer(info.features.get_serialized_info()),
        filename_template=tfds.core.ShardedFileTemplate(
            dataset_name="imagenet2012",
            data_dir=tmp_path / "reference",
            split="train",
            filetype_suffix="array_record",
        ),
        hash_salt="train",
        disable_shuffling=False,
        example_writer=tfds.core.writer.ExampleWriter(tfds.core.file_adapters.FileFormat.ARRAY_RECORD),
        shard_config=tfds.core.writer.shard_utils.ShardConfig(num_shards=2),
    )
    for synset, images in photos().items():
        for name, file in images.items():
            example = {"image": file, "label": synset, "file_name": name}
            writer.write(name, info.features.encode_example(example))
    lengths, _ = writer.finalize()
    ours = tmp_path / "data/imagenet2012/5.1.0"
    assert tfds.builder("imagenet2012", data_dir=tmp_path / "data").info.splits["train"].shard_lengths == lengths
    for path in sorted((tmp_path / "reference").glob("*array_record*")):
        assert (ours / path.name).read_bytes() == path.read_bytes()


def test_cmyk_and_png_become_rgb_jpegs_with_their_labels(archives):
    train = photos()
    first, second, _ = SYNSETS
    train[first][f"{first}_90.JPEG"] = image_file(texture(7), "CMYK")
    train[second][f"{second}_91.JPEG"] = image_file(texture(8), kind="PNG")
    train[second][f"{second}_92.JPEG"] = image_file(texture(9), "P", "PNG")
    write_archives(archives, train)
    done = prepared(archives)
    converted = {f"{first}_90.JPEG": "CMYK JPEG", f"{second}_91.JPEG": "RGB PNG", f"{second}_92.JPEG": "P PNG"}
    assert done.converted == converted
    found = read_back(archives, "train")
    assert len(found) == 21
    for name, label, seed in ((f"{first}_90.JPEG", 0, 7), (f"{second}_91.JPEG", 1, 8)):
        assert found[name][0] == label
        with Image.open(io.BytesIO(found[name][1])) as picture:
            assert (picture.format, picture.mode) == ("JPEG", "RGB")
            difference = np.abs(np.asarray(picture).astype(int) - texture(seed))
        assert difference.mean() < 4  # CMYK is a JPEG of its own first


def test_images_of_a_few_pixels_are_kept(archives):
    train, synset = photos(), SYNSETS[0]
    train[synset] |= {f"{synset}_9{side}.JPEG": image_file(texture(7)[:side, :5]) for side in (1, 7)}
    write_archives(archives, train)
    assert prepared(archives).examples["train"] == 20


def test_damaged_images_are_named_and_left_out_only_when_that_is_allowed(archives):
    train, synset = photos(), SYNSETS[1]
    whole = photo(3)
    train[synset] |= {
        f"{synset}_80.JPEG": b"",
        f"{synset}_81.JPEG": whole[: len(whole) // 2],
        f"{synset}_82.JPEG": b"this is no image",
    }
    write_archives(archives, train)
    with pytest.raises(InputError, match=r"3 images are damaged: n01443537_80.JPEG \(it is empty\), .*--allow-partial"):
        _prepare_with_counts(archives)
    done = prepared(archives)
    assert done.examples == {"train": 18, "validation": 6}
    assert list(done.damaged) == [f"{synset}_8{i}.JPEG" for i in range(3)]
    assert done.damaged[f"{synset}_81.JPEG"].startswith("image file is truncated")
    assert done.damaged[f"{synset}_82.JPEG"] == "it is neither a JPEG nor a PNG image"
    assert not set(read_back(archives, "train")) & set(done.damaged)
    assert prepared(archives) == done  # what was prepared before tells the same


def test_a_part_that_was_prepared_before_does_not_pass_for_all(archives):
    done = prepared(archives)
    with pytest.raises(InputError, match=r"was prepared before from a part of ImageNet: train 18, .* --allow-partial"):
        prepared(archives, allow_partial=False)
    assert prepared(archives.parent / "nowhere") == done


def _prepare_with_counts(archives: Path) -> None:
    """Prepare, with these numbers of images in place of the official ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imagenet, "_require_counts", lambda *_: None)
        prepared(archives, allow_partial=False)


def test_a_split_of_which_nothing_is_left_is_refused(archives):
    write_tar(archives / VALIDATION, {"ILSVRC2012_val_00000001.JPEG": b""})
    with pytest.raises(InputError, match="no image of the split validation can be decoded"):
        prepared(archives)


def test_smaller_archives_are_refused_unless_that_is_allowed(archives):
    with pytest.raises(InputError, match=r"img_train.tar holds 18 images, wanted 1,281,167. .* --allow-partial"):
        prepared(archives, allow_partial=False)


def test_a_class_of_another_size_is_refused(archives, monkeypatch):
    monkeypatch.setattr(imagenet, "_EXAMPLES", {"train": 18, "validation": 6})
    with pytest.raises(InputError, match="holds 6 images of class 0, wanted 732 to 1300"):
        prepared(archives, allow_partial=False)


@pytest.mark.parametrize("name", [TRAIN, VALIDATION])
def test_an_archive_that_is_missing_is_refused(archives, name):
    (archives / name).unlink()
    with pytest.raises(InputError, match=rf"{name} cannot be read: No such file .* Wanted in --manual-dir: ILSVRC2012"):
        prepared(archives)


@pytest.mark.parametrize(
    ("archive", "members", "message"),
    [
        (TRAIN, {"ILSVRC2012_val_00000001.JPEG": b"x"}, r"holds ILSVRC2012_val_.*, wanted n01440764.tar and 999"),
        (TRAIN, {"n99999999.tar": tar_of({})}, "n99999999.tar, which is no class of ImageNet 2012"),
        (TRAIN, {"n01440764.tar": tar_of({"a.JPEG": b"x"})}, r"n01440764.tar holds a.JPEG, wanted n01440764_1.JPEG"),
        (TRAIN, {"n01440764.tar": tar_of({"n01443537_1.JPEG": b"x"})}, "which does not belong there"),
        (TRAIN, {"n01440764.tar": b"x" * 600}, "n01440764.tar is not a whole tar archive"),
        (TRAIN, {"n01440764.tar": tar_of({})}, "holds no images"),
        (VALIDATION, {"n01440764.tar": b""}, "holds n01440764.tar, wanted ILSVRC2012_val_00000001.JPEG"),
        (VALIDATION, {"ILSVRC2012_val_00050001.JPEG": b""}, "but there are 50000 images"),
        (VALIDATION, {"ILSVRC2012_val_00000000.JPEG": b""}, "but there are 50000 images"),
    ],
)
def test_another_archive_is_refused(archives, archive, members, message):
    write_tar(archives / archive, members)
    with pytest.raises(InputError, match=message) as error:
        prepared(archives)
    assert str(archives / archive) in str(error.value)


@pytest.mark.parametrize("archive", [TRAIN, VALIDATION])
@pytest.mark.parametrize("damage", ["no tar", "empty", "cut", "garbage"])
def test_an_archive_that_is_not_whole_is_refused(archives, archive, damage):
    path = archives / archive
    content = path.read_bytes()
    end = len(content.rstrip(b"\0"))
    damaged = {
        "no tar": b"<html>404</html>" * 100,
        "empty": b"",
        "cut": content[: end // 2 + 100],
        "garbage": content[: end // 512 * 512 + 512] + b"x" * 1024,
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(InputError, match=r"is not a whole tar archive: .* get it again from image-net.org"):
        prepared(archives)


def test_an_image_that_comes_twice_is_refused(archives):
    inner = tar_of({"n01440764_1.JPEG": photo(1), "n01440764_2.JPEG": photo(2)})
    twice = inner[: len(inner.rstrip(b"\0")) // 512 * 512 + 512] + inner
    write_tar(archives / TRAIN, {"n01440764.tar": twice})
    with pytest.raises(InputError, match="holds an image twice"):
        prepared(archives)


def test_a_full_disk_is_told_before_it_is_full(archives, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(imagenet.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=r"needs 0.0 GB more and has 0.0 GB free. Make space, or give another"):
        prepared(archives)


def test_a_disk_that_fills_up_is_one_error_and_what_is_done_is_kept(archives, monkeypatch):
    written = []

    def full(path, target):
        if len(written) == 3:
            raise OSError(28, os.strerror(28))
        written.append(target)
        move_into_place(path, target)

    move_into_place = shards.move_into_place
    monkeypatch.setattr(shards, "move_into_place", full)
    with pytest.raises(
        InputError, match=r"array_record.* cannot be written in .*No space left on device.* start again"
    ):
        prepared(archives, num_shards=2)
    [work] = archives.parent.glob("data/incomplete.imagenet2012-*")
    assert len([*(work / "shards").iterdir()]) == 1
    assert not [*(work / "scratch").iterdir()]
    monkeypatch.undo()
    assert prepared(archives, num_shards=2).examples == {"train": 18, "validation": 6}


def test_what_the_record_writer_cannot_write_is_one_error(archives, monkeypatch):
    def broken(self, data):
        raise RuntimeError("write() failed: No space left on device")

    writer = type("Writer", (), {"__init__": lambda self, *_: None, "write": broken, "close": lambda self: None})
    monkeypatch.setattr("array_record.python.array_record_module.ArrayRecordWriter", writer)
    with pytest.raises(InputError, match=r"cannot be written in .*: write\(\) failed: No space left on device"):
        prepared(archives)


def test_a_directory_that_cannot_be_made_is_refused(archives):
    (archives.parent / "data").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot be made: Not a directory. Give a directory .* with --data-dir"):
        prepared(archives)


def test_other_archives_start_anew_and_what_was_left_is_pointed_out(archives):
    class Lines(PrepareListener):
        def __init__(self):
            self.lines = []

        def say(self, line):
            self.lines.append(line)

    write_tar(archives / VALIDATION, {"ILSVRC2012_val_00000001.JPEG": b""})
    with pytest.raises(InputError, match="no image of the split"):
        prepared(archives)
    write_archives(archives, photos())
    lines = Lines()
    assert prepared(archives, watch=lines).examples["validation"] == 6
    [line] = lines.lines
    assert "is left from other archives; it can be removed" in line


def test_every_image_is_told(archives):
    class Counts(PrepareListener):
        def __init__(self):
            self.told = {}

        def begin(self, what, total, done=0):
            self.told[what] = [total, done]
            self.now = self.told[what]

        def advance(self, images):
            self.now[1] += images

    counts = Counts()
    prepared(archives, watch=counts, num_shards=2)
    assert counts.told["writing"] == [24, 24]
    assert counts.told["finding train images"] == [1_281_167, 18]
    verify("imagenet2012", str(archives.parent / "data"), watch=counts)
    assert counts.told["reading train"] == [18, 18]


def test_verifying_finds_every_damage(archives):
    prepared(archives)
    data = str(archives.parent / "data")
    assert verify("imagenet2012", data).damaged == {}
    [path] = archives.parent.glob("data/imagenet2012/5.1.0/*train*00000-of-00001")
    damage_a_record(path)
    found = verify("imagenet2012", data, threads=2)
    assert found.examples == {"train": 18, "validation": 6}
    assert found.damaged
    assert all(where.startswith("train/") for where in found.damaged)


def test_verifying_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not prepared in .*: jaxnet data prepare imagenet2012 --manual-dir"):
        verify("imagenet2012", str(tmp_path))
