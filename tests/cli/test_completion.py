"""`jaxnet completion`: the script that it prints completes, in a real shell."""

import shutil
import subprocess
import sys

import pytest

from jaxnet.cli.completion import _names
from jaxnet.cli.main import run
from jaxnet.comm import STRATEGIES
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.machines import machine_named
from jaxnet.cost.shapes import SIZES
from jaxnet.cost.step_bench import labelled_strategy
from jaxnet.models.zoo import ZOO
from support.programs import ROOT
from support.refusals import refused, says

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
$(complete -p jaxnet | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "jaxnet"
    done = subprocess.run(
        [sys.executable, "-m", "jaxnet", "completion", "bash"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(done.stdout)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("str", {"strategies"}),
        ("bench st", {"step"}),
        ("bench step --str", {"--strategy"}),
        ("bench step --strategy hi", {name for name in STRATEGIES if name.startswith("hi")}),
        ("bench inference --model vgg11_", {"vgg11_bn"}),
        ("plan --on v5", {"v5e:", "v5p:"}),
        ("train --config pyproj", {"pyproject.toml"}),
        ("tune --profile pyproj", {"pyproject.toml"}),
        ("launch ssh --hostfile pyproj", {"pyproject.toml"}),
        ("launch mpi --hostfile pyproj", {"pyproject.toml"}),
    ],
)
def test_a_word_is_completed(script, line, found):
    words = ["jaxnet", *line.split()]
    done = subprocess.run(["bash", "-c", ASK, "-", script, *words], cwd=ROOT, capture_output=True, text=True)
    assert set(done.stdout.split()) >= found
    assert len(done.stdout.split()) <= len(found) + 2


def test_every_name_that_is_offered_is_taken():
    """After a colon the user adds sizes."""

    def simulated(name):
        return machine_named(f"{name}{'2x2x2' if name in ('v4:', 'v5p:') else '2x1'}")

    def compiled(name):
        return name == "here" or Cluster.named(f"{name}{'2x2x2' if name in ('v4:', 'v5p:') else '2x2'}")

    readers = {"bench inference": ZOO.__getitem__, "bench step": SIZES.__getitem__, "tune": SIZES.__getitem__}
    for (command, option), names in _names().items():
        read = {
            "--strategy": labelled_strategy,
            "--model": readers.get(command, ZOO.__getitem__),
            "--on": simulated if command == "simulate" else compiled,
        }[option]
        assert all(read(name) for name in names)


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script(shell, capsys):
    assert run(["completion", shell]) == 0
    assert "jaxnet" in capsys.readouterr().out


def test_a_shell_that_is_none(capsys):
    says(refused(lambda: run(["completion", "fish"]), capsys), ["invalid choice: 'fish'", "bash"])
