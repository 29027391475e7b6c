"""What the README and the guide say is so: commands name what is there, errors and tables are those shown.

Commands that only print are run. For the others, the tests check the options and load the config: they train or
measure, need root or an MPI library, or take a run or files that only a reader has. The match in `check` lists them.
"""

import ast
import contextlib
import doctest
import functools
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys

import jax
import pytest

import jaxnet.cli.train
from jaxnet.cli.main import run as run_jaxnet
from jaxnet.comm import STRATEGIES
from jaxnet.config.file import load_config
from jaxnet.cost.accelerators import Cluster
from jaxnet.errors import InputError
from support.markdown import as_a_reader, blocks, pages
from support.programs import ROOT, clean_environment

PAGES = ["README.md", *pages("docs/guide")]
SHELL = [block for page in PAGES for block in blocks(page, "sh")]
REFUSED = [block for block in SHELL if (block.output or "").startswith("error: ")]
SHOWN = [block for block in SHELL if block.text.startswith("jaxnet plan") and block.output]
COMMANDS = [(block, line) for block in SHELL if block not in [*REFUSED, *SHOWN] for line in block.text.splitlines()]
LOOKED_AT = {"bench", "tune", "timeline", "predict", "export", "data", "import", "doctor", "report"}  # options alone
TROUBLES = (ROOT / "docs/guide/troubleshoot.md").read_text()
MESSAGES = re.findall(r"^\| `([^`]+)` \|", TROUBLES, re.MULTILINE)


def test_the_config_trains_and_writes_what_is_said(tmp_path):
    as_a_reader("docs/guide/bring_your_own.md", tmp_path)
    overrides = ["model.width=16", "log.hlo=true", "profile.steps=5"]
    done = subprocess.run(
        [sys.executable, "train.py", "--config", "my_config.py", "--workdir", "run", *overrides],
        cwd=tmp_path,
        env=clean_environment(JAX_NUM_CPU_DEVICES="8"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["finished"]
    assert summary["accuracy"] > 0.95
    said = set(re.findall(r"^runs/digits/([\w.]+)", (ROOT / "docs/guide/train.md").read_text(), re.MULTILINE))
    # A run that is traced compiles for itself.
    assert said - {"compile_cache"} == {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=lambda value: str(value))
def test_a_command_names_what_is_there(block, line, tmp_path, monkeypatch):
    as_a_reader(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    words, variables = split(line)
    assert {name.lower() for name in variables} <= set(jax.config.values)
    check(words)


def split(line):
    """A command's words, and the variables before them."""
    words = shlex.split(line, comments=True)
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return words, variables


def check(words):
    match [words[0].removeprefix(".venv/bin/"), *words[1:]]:
        case ["openssl" | "printf" | "chmod" | "export", *_]:  # tests/processes/test_tls_processes.py runs them
            pass
        case ["sudo", *command] | ["timeout", "--signal", "INT", _, *command, "||", "true"]:
            check(command)
        case ["jaxnet", "lab", *arguments]:
            check(started("jaxnet.operations.lab.run.run_lab", ["lab", *arguments]))
        case ["jaxnet", "train", *arguments] | ["python", "train.py", *arguments] | ["train.py", *arguments]:
            check_config(arguments)
        case ["jaxnet", command, *_] if command in LOOKED_AT:
            check_options(words)
        case ["jaxnet", "plan" | "strategies", *_] if "--on" in words:  # tests/accelerators has the compilers
            check_options(words)
            Cluster.named(words[words.index("--on") + 1])
        case ["jaxnet", "simulate", *_] if "--config" in words:  # tests/cli/test_simulate.py has a smaller one
            check_options(words)
        case ["make", target, *settings]:
            check_make(target, dict(setting.split("=", 1) for setting in settings))
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module)
        case ["mpirun", "-n", _, ".venv/bin/python", "-m", "mpi4py", *command]:
            check(command)
        case ["jaxnet", "launch", *arguments] if "--dry-run" not in arguments:
            check(started("jaxnet.operations.launchers.local.launch_local", ["launch", *arguments]))
        case ["jaxnet", "launch", *arguments]:
            assert printed(["launch", *arguments])
        case ["jaxnet", *arguments]:
            ask(*arguments)
        case _:
            raise AssertionError(f"a command that the tests do not know: {words}")


@functools.cache
def ask(*arguments):
    """What `jaxnet ARGUMENTS` prints; it must not fail, nor complain of more than of data that are not here."""
    command = [sys.executable, "-m", "jaxnet", *arguments]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    complaints = re.sub(r"^warning: planned with the shapes of the data alone: .*\n", "", done.stderr)
    assert (done.returncode, complaints) == (0, "")
    return done.stdout


def printed(arguments):
    """The same for what needs no JAX, in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        run_jaxnet(arguments)
    return out.getvalue()


def check_config(arguments):
    """Load the config that `jaxnet train ARGUMENTS` would train."""
    given = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxnet.cli.train.run_train", lambda args: given.append(args) or 0)
        assert jaxnet.cli.train.main(arguments) == 0
    [args] = given
    load_config(args.config, *args.overrides)


def check_options(words):
    names = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)][:2]
    names = names if names[0] in ("bench", "data") else names[:1]
    described = printed([*names, "--help"])
    assert [word for word in words if word.startswith("--") and word not in described] == []


def started(launcher, arguments):
    """What a command of `jaxnet` would start by calling `launcher`."""
    commands = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, lambda command, *_, **__: commands.append(command) or 0)
        assert run_jaxnet(arguments) == 0
    [command] = commands
    return command


def check_make(target, settings):
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert all(re.search(rf"^{name} \?=", makefile, re.MULTILINE) for name in settings)
    if "CONFIG" in settings:
        check(["train.py", "--config", settings["CONFIG"], *shlex.split(settings.get("ARGS", ""))])


@pytest.mark.parametrize("block", REFUSED, ids=str)
def test_an_error_is_the_one_that_is_shown(block, tmp_path, monkeypatch):
    as_a_reader(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    words, variables = split(block.text)
    if not variables:  # refused as it is read
        with pytest.raises(InputError) as refused:
            check(words)
        assert f"error: {refused.value}".split() == block.output.split()
        return
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=clean_environment(**variables), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].split() == block.output.split()


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_command_prints_what_is_shown(block, tmp_path, monkeypatch):
    as_a_reader(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    answer = ask(*split(block.text)[0][1:])
    assert doctest.OutputChecker().check_output(block.output, answer, doctest.ELLIPSIS), answer


@pytest.fixture(scope="module")
def texts():
    """All that the package can say: its texts, those with values in them in one piece with `...` for each."""
    found = []
    for path in sorted((ROOT / "jaxnet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[ds]", "...", node.value))
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_ours(message, texts):
    assert any(message.removesuffix(" ...") in text for text in texts)


@pytest.mark.parametrize("page", ["README.md", "docs/guide/communication.md"])
def test_the_table_holds_every_strategy(page):
    rows = re.findall(r"^\| (`\w+`[^|]*) \|", (ROOT / page).read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= set(STRATEGIES)


def test_the_times_beside_the_strategies_are_those_of_the_matrix():
    rows = re.findall(r"^\| `(\w+)`.*\| (\S+), (\S+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    lines = (ROOT / "benchmarks/results/matrix.jsonl").read_text().splitlines()
    exposed = {
        (row["strategy"], row["cluster"]): row["exposed_seconds"]
        for row in map(json.loads, lines)
        if row["model"] == "resnet50"
    }
    wanted = [
        (name, *(f"{1e3 * exposed[name, cluster]:.2f}" for cluster in ("h100:2x8", "v5p:2x2x4"))) for name, *_ in rows
    ]
    assert len(rows) == 9
    assert rows == wanted


def test_the_tree_holds_what_is_there():
    pictures = [block.text for block in blocks("docs/guide/architecture.md", "text")]
    [tree] = [picture for picture in pictures if picture.startswith("train.py")]
    names = re.findall(r"^(  )?(\S+)", tree, re.MULTILINE)
    shown = {f"jaxnet/{name}" if indented else name for indented, name in names}
    assert [name for name in shown if not (ROOT / name).exists()] == []
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        parts = [path.split("/") for path in listed.stdout.splitlines()]
        there = {first + "/" * bool(rest) for first, *rest in parts if not first.startswith(".")}
        there |= {"/".join(part[:2]) + "/" * (len(part) > 2) for part in parts if part[0] == "jaxnet"}
        there -= {"jaxnet/__init__.py", "jaxnet/__main__.py", "jaxnet/py.typed"}
        assert there - shown == set()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 8192
