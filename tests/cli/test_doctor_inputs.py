"""`jaxnet doctor`: a wrong option is one line and status 2; a failed check is status 1."""

import json
import re

import pytest

from jaxnet.cli.main import run
from support.refusals import DIGITS, TINY, every, refused, says

WRONG = {
    "rate": ("--expect-rate fast", "--expect-rate fast: wanted a number of kbit, mbit or gbit a second"),
    "no config": ("seed=3", "seed=3: this changes a config, and there is none; give one with --config"),
    "no such config": ("--config none.py", "config none.py: no such file"),
    "key of a config": (f"--config {DIGITS} sead=3", "sead", "did you mean"),
    "time": ("--timeout 0", "--timeout: '0' must be a whole number of at least 1"),
    "workdir": ("--workdir=", "wanted a path, got nothing"),
}


@every(WRONG)
def test_a_mistake_is_one_line(given, words, capsys):
    says(refused(lambda: run(["doctor", *given.split()]), capsys), words)


def report(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run(["doctor", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)["findings"]
    return ended.value.code, {each["check"]: each for each in found}


def test_one_process(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, found = report(capsys, "--config", DIGITS)
    assert status == 0
    assert found["data"]["found"] == "1,437 examples to train, 360 examples to test"
    assert found["devices"]["found"] == "8 of kind cpu"
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_not_there(capsys, tmp_path):
    config = tmp_path / "missing.py"
    data = f"FashionMNIST(idx_dir={str(tmp_path)!r}, data_dir={str(tmp_path)!r})"
    config.write_text(re.sub(r"Synthetic\(.*\)", data, TINY).replace("Synthetic", "FashionMNIST"))
    status, found = report(capsys, "--config", str(config), "--workdir", str(tmp_path))
    assert (status, found["data"]["status"]) == (1, "failed")
    assert str(tmp_path) in found["data"]["found"]


def test_half_a_place(capsys, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    status, found = report(capsys)
    assert (status, list(found)) == (1, ["place"])
