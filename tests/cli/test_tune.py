"""`jaxnet tune`: a table with the settings, JSON on several processes, and mistakes in one line."""

import json
import sys

import pytest
from PIL import Image

from jaxnet.cli.main import run
from jaxnet.cost import tuning
from jaxnet.cost.shapes import SIZES, Sizes
from support.programs import launch
from support.refusals import every, refused, says

WRONG = {
    "no such model": ("tune --model nope", "--model nope: there is dense, vgg, resnet50, odd, small"),
    "a key without a config": ("tune batch_size=8", "batch_size=8: give --config FILE too"),
    "slower than nothing": ("tune --slower 4", "--slower: give --profile FILE too"),
    "no number of times": ("tune --profile p.json --slower fast", "'fast' must be a number from 0.001 to 1000"),
    "a picture of another form": ("tune --model dense --residuals fit.txt", "fit.txt' must end in .png or .svg"),
    "a model beside a config": ("tune --config c.py --model dense", "leave --model out"),
}


@every(WRONG)
def test_a_mistake_is_one_line(given, words, capsys):
    says(refused(lambda: run(given.split()), capsys), words)


def test_the_table_ends_with_the_settings(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(SIZES, "small", Sizes(leaves=((16, 16),) * 4, example=(16,), batch=8))
    with pytest.raises(SystemExit) as ended:
        run(["tune", "--model", "small", "--mesh", "2x4", "--all", "--residuals", str(tmp_path / "fit.png")])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("computation alone: forward ")
    assert any(line.startswith("xla ") for line in lines)
    assert lines[-1].startswith("train with: strategy=")
    with Image.open(tmp_path / "fit.png") as drawn:
        assert drawn.width > 900


def test_what_is_measured_is_kept_and_steps_on_a_slower_network_are_predicted(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(SIZES, "small", Sizes(leaves=((64, 64),) * 4, example=(64,), batch=8))
    profile, picture = tmp_path / "profile.json", tmp_path / "step.png"
    given = ["tune", "--model", "small", "--mesh", "2x4", "--json", "--profile", str(profile)]

    def found(*more):
        with pytest.raises(SystemExit) as ended:
            run([*given, *more])
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    says(refused(lambda: run([*given, "--slower", "4"]), capsys), "profile.json has nothing of small of ")
    first = found()
    monkeypatch.setattr(tuning, "measured_parts", None)
    again = found()
    assert (again["compute"], again["unhidden"]) == (first["compute"], first["unhidden"])
    assert not any(row["learned"] for row in again["rows"])
    monkeypatch.setattr(tuning, "seconds_a_step", None)
    same = found("--slower", "1")
    assert predicted(same) == pytest.approx(predicted(again))
    # Of such short messages the rate is noise, and may be none.
    [(key, entry)] = json.loads(profile.read_text()).items()
    for curve in entry["curves"]:
        curve["line"] = {"latency": 1e-3, "per_byte": 1e-8, "low": 1e-8, "high": 1e-8, "worst": 0.0}
    profile.write_text(json.dumps({key: entry}))
    before, slower = predicted(found("--slower", "1")), found("--slower", "1000", "--png", str(picture))
    after = predicted(slower)
    assert all(after[label] > before[label] for label in before)
    assert after["flat"] == pytest.approx(before["flat"] + 999 * 1e-8 * 65536)
    assert slower["why"].startswith("predicted: ")
    with Image.open(picture) as drawn:
        assert drawn.width > 900


def predicted(said):
    return {row["label"]: row["predicted"] for row in said["rows"]}


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
    assert set(found["unhidden"]) == {"one program", "pieces", "priority"}
    assert 0 < found["compute"]["share"] <= 0.9  # measured beside computation, from which a process's messages take it
