"""What a run writes is whole, appended to on a resume, and refused in one line where it cannot be written."""

import json

import pytest

from jaxnet.errors import InputError
from jaxnet.training.records import NoRecords, Records, read_settings, write_whole


def test_write_whole_replaces_the_file_and_leaves_nothing_else(tmp_path):
    for text in ("first", "second"):
        write_whole(tmp_path / "summary.json", text)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("summary.json", "second")]


def test_write_whole_leaves_the_old_file_when_it_fails(tmp_path):
    write_whole(tmp_path / "summary.json", "old")
    (tmp_path / "summary.json.tmp").mkdir()
    with pytest.raises(InputError, match=r"summary\.json cannot be written: Is a directory"):
        write_whole(tmp_path / "summary.json", "new")
    assert (tmp_path / "summary.json").read_text() == "old"


def test_records_are_appended_to(tmp_path):
    for step in (1, 2):
        records = Records(tmp_path, tensorboard=False)
        records.write(step, "train", {"loss": 0.5})
        records.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": s, "split": "train", "loss": 0.5} for s in (1, 2)]


def test_a_line_is_on_the_disk_at_once(tmp_path):
    records = Records(tmp_path, tensorboard=False)
    records.write(1, "train", {"loss": 0.5})
    assert (tmp_path / "metrics.jsonl").read_text().endswith("0.5}\n")
    records.close()


def test_tensorboard_files_are_written(tmp_path):
    records = Records(tmp_path, tensorboard=True)
    records.write(1, "train", {"loss": 0.5})
    records.close()
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_what_stands_in_the_way_is_named(name, tmp_path):
    (tmp_path / name).symlink_to("/nowhere/at/all")
    with pytest.raises(InputError, match=rf"{name} cannot be written: .*; mend that, or use another --workdir"):
        Records(tmp_path, tensorboard=True)


def test_a_full_disk_is_told(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    records = Records(tmp_path, tensorboard=False)
    for act in (lambda: records.write(1, "train", {"loss": 0.5}), records.close):
        with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: No space left on device"):
            act()


def test_settings_are_read_as_written(tmp_path):
    write_whole(tmp_path / "config.json", '{"epochs": 1}\n')
    assert read_settings(tmp_path / "config.json") == {"epochs": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_damaged_settings_are_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json is damaged: .*; --allow-config-change writes it anew"):
        read_settings(tmp_path / "config.json")


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = NoRecords()
    records.write(1, "train", {"loss": 0.5})
    records.close()
    assert not list(tmp_path.iterdir())
