"""A run that cannot write, or cannot continue, changes nothing."""

import json
import shutil

import pytest

import train
from support.refusals import TINY, refused, says


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A directory with the tiny config and what a run of it has left."""
    directory = tmp_path_factory.mktemp("finished")
    (directory / "tiny.py").write_text(TINY)
    assert train.main(["--config", str(directory / "tiny.py"), "--workdir", str(directory / "run")]) == 0
    return directory


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it that a test may spoil."""
    return shutil.copytree(finished / "run", tmp_path / "run")


def contents(directory):
    """What a run has made; that it was started is told by its lock and its ledger."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path: path.read_bytes() for path in files if not {"lock", "ledger.jsonl"} & set(path.parts)}


# How a finished run is spoilt, with which arguments it is then continued, and what the message has to say.
CONTINUED = {
    "another config": (
        lambda run: None,
        ("epochs=2", "optimizer.momentum=0.5"),
        "holds a run with another config (epochs: 1 -> 2.0; optimizer.momentum: 0.9 -> 0.5)",
        "--allow-config-change",
    ),
    "another model": (
        lambda run: None,
        ("epochs=2", "model.hidden=8", "--allow-config-change"),
        "holds another state than this program trains: ",
        "params/dense_0/bias",
    ),
    "another model, nothing to compare with": (
        lambda run: (run / "config.json").unlink(),
        ("model.widths=3",),
        "holds another state than this program trains: ",
    ),
    "config.json is cut short": (
        lambda run: (run / "config.json").write_text('{"epochs": 1,'),
        (),
        "config.json is damaged: ",
        "--allow-config-change writes it anew",
    ),
    "config.json is empty": (lambda run: (run / "config.json").write_bytes(b""), (), "config.json is damaged: "),
    "config.json is binary": (lambda run: (run / "config.json").write_bytes(b"\xff\0"), (), "config.json is damaged: "),
    "config.json is a list": (lambda run: (run / "config.json").write_text("[1]"), (), "is damaged: it holds a list"),
    "config.json is a directory": (
        lambda run: ((run / "config.json").unlink(), (run / "config.json").mkdir()),
        (),
        "config.json cannot be read: it is a directory, wanted a file; move it away",
    ),
    "every checkpoint is damaged": (
        lambda run: next(run.glob("checkpoints/0*/manifest.json")).write_text("{"),
        ("epochs=2", "--allow-config-change"),
        "no checkpoint in ",
        "can be used: step 2: ",
        "Nothing was changed there",
    ),
}


@pytest.mark.parametrize(
    ("spoil", "given", "words"), [(case[0], case[1], case[2:]) for case in CONTINUED.values()], ids=CONTINUED
)
def test_a_run_that_cannot_be_continued_is_left_as_it_was(spoil, given, words, finished, run, capsys):
    spoil(run)
    before = contents(run)
    command = ["--config", str(finished / "tiny.py"), "--workdir", str(run), *given]
    says(refused(lambda: train.main(command), capsys), words)
    assert contents(run) == before


def test_a_changed_config_is_continued_on_demand(finished, run, capsys):
    command = ["--config", str(finished / "tiny.py"), "--workdir", str(run), "--allow-config-change", "epochs=2"]
    assert train.main(command) == 0
    assert f"continuing {run} from step 2\n" in capsys.readouterr().out
    assert json.loads((run / "config.json").read_text())["epochs"] == 2
    assert json.loads((run / "summary.json").read_text())["steps"] == 4


# What stands where a run would write, the workdir, and what the message has to say.
PLACES = {
    "a file": (lambda place: place.write_text("mine"), "", "cannot be made: it is a file; give another with --workdir"),
    "below a file": (lambda place: place.write_text("mine"), "/run", "cannot be made: Not a directory; give another"),
    "below a link to nowhere": (lambda place: place.symlink_to("/nowhere/x"), "", "cannot be made: File exists"),
    "below a loop of links": (lambda place: place.symlink_to("place"), "", "cannot be made: File exists"),
    "a name that is no UTF-8": (lambda place: place.mkdir(), "/\udcff", "is no name in UTF-8; give another with"),
    "a name too long": (lambda place: place.mkdir(), "/" + 300 * "x", "cannot be made: File name too long; give"),
    "a cache that links to itself": (
        lambda place: (place.mkdir(), (place / "compile_cache").symlink_to("compile_cache")),
        "",
        "compile_cache ",
        "cannot be used: File exists; give another, or compile_cache=none",
    ),
    "a file for the checkpoints": (
        lambda place: (place.mkdir(), (place / "checkpoints").write_text("mine")),
        "",
        "checkpoints cannot be written to ",
        "File exists",
    ),
}


@pytest.mark.parametrize(
    ("block", "below", "words"), [(case[0], case[1], case[2:]) for case in PLACES.values()], ids=PLACES
)
def test_a_workdir_that_cannot_be_made(block, below, words, finished, tmp_path, capsys):
    place = tmp_path / "place"
    block(place)
    before = contents(tmp_path)
    command = ["--config", str(finished / "tiny.py"), "--workdir", f"{place}{below}"]
    says(refused(lambda: train.main(command), capsys), words)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("workdir", ["/proc", "/proc/run"])
def test_a_workdir_on_a_file_system_that_takes_nothing(workdir, finished, capsys):
    command = ["--config", str(finished / "tiny.py"), "--workdir", workdir]
    says(refused(lambda: train.main(command), capsys), [workdir])
