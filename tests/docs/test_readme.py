"""What the README says is so: its programs run, and what its commands name is there."""

import json
import re
import shlex
import subprocess
import sys

import jax
import pytest

import train
from jaxnet.cli.main import run as run_jaxnet
from jaxnet.comm import STRATEGIES
from jaxnet.config.file import load_config
from support.markdown import blocks, broken_links, check_python
from support.programs import ROOT, clean_environment

README = (ROOT / "README.md").read_text()
PROGRAMS = blocks("README.md", "python")
COMMANDS = [line for block in blocks("README.md", "sh") for line in block.text.splitlines()]
PICTURES = [block.text for block in blocks("README.md", "text")]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs_as_it_stands(block, tmp_path):
    check_python(block, tmp_path)


def test_the_config_trains_and_writes_what_is_said(tmp_path):
    [block] = [block for block in PROGRAMS if "def get_config" in block.text]
    (tmp_path / "config.py").write_text(block.text)
    overrides = ["model.width=16", "log.hlo=true", "profile.steps=5"]
    done = subprocess.run(
        [sys.executable, "train.py", "--config", tmp_path / "config.py", "--workdir", tmp_path / "run", *overrides],
        env=clean_environment(JAX_NUM_CPU_DEVICES="8"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["finished"]
    assert summary["accuracy"] > 0.95
    said = set(re.findall(r"^runs/digits/([\w.]+)", "\n".join(PICTURES), re.MULTILINE))
    assert said == {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_names_what_is_there(line):
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        assert words.pop(0).partition("=")[0].lower() in jax.config.values
    check([words[0].removeprefix(".venv/bin/"), *words[1:]])


def check(words):
    match words:
        case ["sudo", *command]:
            check([command[0].removeprefix(".venv/bin/"), *command[1:]])
        case ["jaxnet", "lab", *arguments]:
            inner = in_the_lab(["lab", *arguments])
            check([inner[0].removeprefix(".venv/bin/"), *inner[1:]])
        case ["jaxnet", "bench" | "timeline" | "predict" | "export" | "data" | "import" | "doctor" | "report", *_]:
            ask([*words, "--help"])  # they take their time, a run, or a file
        case ["make", target, *settings]:
            check_make(target, dict(setting.split("=", 1) for setting in settings))
        case ["train.py", *arguments] | ["python", "train.py", *arguments]:
            args = train.parse(arguments)
            load_config(args.config, *args.overrides)
        case ["mpirun", "-n", _, ".venv/bin/python", "-m", "mpi4py", *command]:
            check(command)
        case ["jaxnet", "launch", *arguments] if "--dry-run" in arguments:
            ask(words)
        case ["jaxnet", "launch", *arguments]:
            inner = launched(["launch", *arguments])
            check([inner[0].removeprefix(".venv/bin/"), *inner[1:]])
        case ["jaxnet", *_]:
            ask(words)
        case _:
            raise AssertionError(f"a command that the tests do not know: {words}")


def ask(words):
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def in_the_lab(arguments):
    """What `jaxnet lab` would start on each host."""
    commands = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxnet.operations.lab.run.run_lab", lambda command, _: commands.append(command) or 0)
        assert run_jaxnet(arguments) == 0
    [command] = commands
    return command


def check_make(target, settings):
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert all(re.search(rf"^{name} \?=", makefile, re.MULTILINE) for name in settings)
    if "CONFIG" in settings:
        check(["train.py", "--config", settings["CONFIG"], *shlex.split(settings.get("ARGS", ""))])


def launched(arguments):
    """What `jaxnet launch local` would start."""
    commands = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxnet.operations.local.launch_local", lambda command, *_, **__: commands.append(command) or 0)
        assert run_jaxnet(arguments) == 0
    [command] = commands
    return command


def test_the_table_holds_every_strategy():
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(STRATEGIES)


def test_the_tree_holds_what_is_there():
    [tree] = [picture for picture in PICTURES if picture.startswith("train.py")]
    names = re.findall(r"^(  )?(\S+)", tree, re.MULTILINE)
    shown = {f"jaxnet/{name}" if indented else name for indented, name in names}
    assert [name for name in shown if not (ROOT / name).exists()] == []
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        parts = [path.split("/") for path in listed.stdout.splitlines()]
        there = {first + "/" * bool(rest) for first, *rest in parts if not first.startswith(".")}
        assert there - shown - {"README.md"} == set()


def test_links_lead_somewhere():
    assert broken_links("README.md") == []
