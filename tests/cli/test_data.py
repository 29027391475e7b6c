"""`jaxnet data` prepares and verifies from the command line."""

import json

import pytest

from jaxnet.cli.main import run
from jaxnet.errors import InputError
from support.imagenet import SYNSETS, damage_a_record, photos, write_archives
from support.refusals import refused


@pytest.fixture
def archives(tmp_path):
    train = photos(3)
    train[SYNSETS[0]][f"{SYNSETS[0]}_9.JPEG"] = b""
    write_archives(tmp_path / "archives", train, validation=2)
    return tmp_path / "archives"


def prepare(archives, *more):
    where = ["--manual-dir", str(archives), "--data-dir", str(archives.parent / "data")]
    return ["data", "prepare", "imagenet2012", *where, *more]


def test_prepare_and_verify(archives, capsys):
    assert run(prepare(archives, "--allow-partial", "--threads", "1")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("writing: 12 of 12 images, ") for line in lines)
    assert "  n01440764_9.JPEG: it is empty" in lines
    target = archives.parent / "data/imagenet2012/5.1.0"
    assert lines[-1] == f"imagenet2012 is in {target}: train 9, validation 2"
    verify = ["data", "verify", "imagenet2012", "--data-dir", str(archives.parent / "data")]
    assert run(verify) == 0
    assert capsys.readouterr().out.endswith("train 9, validation 2; 0 damaged\n")
    damage_a_record(next(target.glob("*train*")))
    assert run([*verify, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == {"train": 9, "validation": 2}
    assert found["damaged"]


def test_mistakes_are_one_line(archives, tmp_path, capsys):
    with pytest.raises(InputError, match=r"holds 10 images, wanted 1,281,167"):
        run(prepare(archives))
    capsys.readouterr()
    message = refused(lambda: run(prepare(tmp_path)), capsys)
    assert "ILSVRC2012_img_train.tar cannot be read: No such file or directory" in message


def test_another_data_set_is_refused(capsys):
    message = refused(lambda: run(["data", "prepare", "cifar10", "--manual-dir", "x"]), capsys)
    assert "invalid choice: 'cifar10'" in message
