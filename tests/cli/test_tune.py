"""`jaxnet tune`: a table with the settings, JSON on several processes, and mistakes in one line."""

import json
import sys

import pytest

from jaxnet.cli.main import run
from jaxnet.cost.shapes import SIZES, Sizes
from support.programs import launch
from support.refusals import every, refused, says

WRONG = {
    "no such model": ("tune --model nope", "--model nope: there is dense, vgg, resnet50, small"),
    "a key without a config": ("tune batch_size=8", "batch_size=8: give --config FILE too"),
    "a model beside a config": ("tune --config c.py --model dense", "leave --model out"),
}


@every(WRONG)
def test_a_mistake_is_one_line(given, words, capsys):
    says(refused(lambda: run(given.split()), capsys), words)


def test_the_table_ends_with_the_settings(capsys, monkeypatch):
    monkeypatch.setitem(SIZES, "small", Sizes(leaves=((16, 16),) * 4, example=(16,), batch=8))
    with pytest.raises(SystemExit) as ended:
        run(["tune", "--model", "small", "--mesh", "2x4", "--all"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("computation alone: forward ")
    assert any(line.startswith("xla ") for line in lines)
    assert lines[-1].startswith("train with: strategy=")


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_agree_on_a_plan():
    with launch(sys.executable, "-m", "jaxnet", "tune", "--model", "small", "--json") as job:
        assert job.finish() == 0, job.err
    lines = [line.removeprefix("[0] ") for line in job.out if "Gloo" not in line]
    found = json.loads("".join(lines))
    rows = {row["label"]: row for row in found["rows"]}
    assert found["default"] == "ddp:4MiB"
    assert {"xla", "ddp:4MiB"} <= rows.keys()
    assert {label.partition(":")[0] for label in rows} >= {"priority", "per_leaf", "flat"}
    assert rows[found["best"]]["measured"] > 0
    assert found["settings"].startswith("strategy=")
    assert set(found["learned"]) == {"one program", "pieces", "priority"}
