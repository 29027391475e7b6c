"""`jaxnet new`: the config that it writes trains."""

import json

import pytest

from jaxnet.cli.main import run
from support.refusals import refused, says


@pytest.mark.slow
def test_what_it_writes_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine.py"]) == 0
    assert capsys.readouterr().out == "written to mine.py; train it: jaxnet train --config mine.py\n"
    assert "jaxnet train --config mine.py\n" in (tmp_path / "mine.py").read_text()
    with pytest.raises(SystemExit) as ended:
        run(["train", "--config", "mine.py", "epochs=3", "model.width=8"])
    assert ended.value.code == 0
    summary = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    assert (summary["finished"], summary["accuracy"] > 0.8) == (True, True)


@pytest.mark.parametrize(
    ("name", "words"),
    [("mine", "a name that ends in .py"), ("there.py", "exists and is left alone"), ("no/a.py", "No such file")],
)
def test_what_it_refuses(name, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    says(refused(lambda: run(["new", name]), capsys), [words])
    assert (tmp_path / "there.py").read_text() == "mine"


def test_a_name_that_no_text_holds_and_a_disk_that_is_full_leave_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["new", "\udcff.py"]) == 0
    capsys.readouterr()
    compile((tmp_path / "\udcff.py").read_text(encoding="utf-8"), "a", "exec")

    monkeypatch.setattr("jaxnet.cli.new._CONFIG", Full())
    says(refused(lambda: run(["new", "b.py"]), capsys), ["b.py cannot be written: No space left on device"])
    assert not (tmp_path / "b.py").exists()


class Full(str):
    def format(self, **_):
        raise OSError(28, "No space left on device")
