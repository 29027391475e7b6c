"""`jaxnet timeline`: what it prints and draws, and what it refuses."""

import json
import subprocess
import sys

import jax
import pytest

import train
from jaxnet import comm
from jaxnet.cli.main import run
from support.odd_files import DEEP, ODD, directory, endless, loop, to_a_device
from support.programs import clean_environment
from support.refusals import TINY, refused, says
from support.traces import LAYERS, STEPS, record

LAST = 99 + STEPS


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run's directory, as far as the command looks at it."""
    directory = tmp_path_factory.mktemp("run")
    mesh = comm.make_mesh(1, jax.devices()[:2])
    record(directory / "profile/process_0", mesh)
    (directory / "summary.json").write_text(json.dumps({"mesh": dict(mesh.shape)}))
    return directory


def test_a_table(workdir, capsys):
    assert run(["timeline", str(workdir), "--step", str(LAST)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"jit_step, step {LAST} (the trace holds ")
    rows = [line.split() for line in lines if " all-reduce " in line]
    assert sorted(row[0] for row in rows) == list(map(str, range(LAYERS)))
    assert {row[2] for row in rows} == {"device"}


def test_json_and_a_picture(workdir, tmp_path, capsys):
    assert run(["timeline", str(workdir), "--json", "--png", str(tmp_path / "step.png")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["devices"]) == 2
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_in_a_process_of_its_own_where_warnings_are_errors(workdir):
    [trace] = workdir.rglob("*.xplane.pb")
    command = [sys.executable, "-m", "jaxnet", "timeline", str(trace)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all-reduce" in done.stdout


def test_a_run_of_train_numbers_its_steps(tmp_path, capsys):
    (tmp_path / "config.py").write_text(TINY)
    window = ["epochs=3", "profile.start=2", "profile.steps=2", "strategy=flat"]
    train.main(["--config", str(tmp_path / "config.py"), "--workdir", str(tmp_path / "run"), *window])
    capsys.readouterr()
    assert run(["timeline", str(tmp_path / "run"), "--step", "3", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["steps"][-2:] == [2, 3]
    assert len(made["devices"]) == 8


def test_no_such_place(tmp_path, capsys):
    says(refused(lambda: run(["timeline", f"{tmp_path}/zzz"]), capsys), [f"{tmp_path}/zzz: no such file or directory"])


def test_no_trace_there(tmp_path, capsys):
    message = refused(lambda: run(["timeline", str(tmp_path)]), capsys)
    says(message, [f"{tmp_path}: there is no trace of the JAX profiler here or below", "profile.steps=3"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("host.trace.json.gz", b"", "wanted a trace of the JAX profiler, a file named *.xplane.pb"),
        ("host.xplane.pb", b"\x0b\x00", "cannot be read as a trace of the JAX profiler: "),
        ("host.xplane.pb", b"not a trace", "cannot be read as a trace of the JAX profiler: "),
        ("host.xplane.pb", b"", "holds no instructions of compiled programs"),
    ],
)
def test_not_a_trace(name, content, words, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    says(refused(lambda: run(["timeline", str(tmp_path / name)]), capsys), [words])


@pytest.mark.parametrize(
    "make", [pytest.param(make, marks=[pytest.mark.slow] * (make is endless)) for make in ODD if make is not directory]
)
def test_a_trace_that_is_no_file(make, tmp_path, capsys):
    place = tmp_path / "plugins/profile/1"
    place.mkdir(parents=True)
    make(place / "host.xplane.pb")
    says(refused(lambda: run(["timeline", str(tmp_path)]), capsys), ["cannot be read as a trace of the JAX profiler: "])


@pytest.mark.parametrize("make", [to_a_device, loop])
def test_a_picture_replaces_only_a_file(workdir, make, tmp_path, capsys):
    make(tmp_path / "step.png")
    message = refused(lambda: run(["timeline", str(workdir), "--png", f"{tmp_path}/step.png"]), capsys)
    says(message, ["step.png cannot be written: it is a symbolic link, wanted a file or nothing there"])


def test_a_trace_that_was_cut(workdir, tmp_path, capsys):
    [trace] = workdir.rglob("*.xplane.pb")
    (tmp_path / "cut.xplane.pb").write_bytes(trace.read_bytes()[:-100])
    says(refused(lambda: run(["timeline", f"{tmp_path}/cut.xplane.pb"]), capsys), ["cannot be read as a trace"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step", "9999"], "step 9999 is not whole in the trace; it holds "),
        (["--step", "-1"], "argument --step: "),
        (["--step", "last"], "'last' must be the number of a step"),
        (["--png", "step.pdf"], "'step.pdf' must end in .png"),
        (["--png", "/nowhere/step.png"], "there is no directory /nowhere"),
        (["--pgn", "step.png"], "did you mean --png?"),
    ],
)
def test_wrong_options(workdir, options, words, capsys):
    says(refused(lambda: run(["timeline", str(workdir), *options]), capsys), [words])


def test_a_picture_without_matplotlib(workdir, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(lambda: run(["timeline", str(workdir), "--png", f"{tmp_path}/step.png"]), capsys)
    says(message, ["the picture needs matplotlib", "'notebooks'"])


def test_a_summary_that_is_none(workdir, capsys):
    summary = workdir / "summary.json"
    before = summary.read_text()
    for text in ("{}", DEEP, '{"mesh": [1]}', '{"mesh": {"host": "x"}}'):
        summary.write_text(text)
        says(refused(lambda: run(["timeline", str(workdir)]), capsys), [f"{summary} is not the summary of a run"])
    summary.write_text(before)
