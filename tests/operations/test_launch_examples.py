"""launch/: each file is what the command in its header prints; shellcheck accepts the scripts."""

import shutil
import subprocess

import pytest

from support.launch_examples import FOLDER, NAMES, printed

SCRIPTS = ["slurm.sbatch", "slurm-container.sbatch", "mpi.sh", "ssh.sh", "tpu.sh"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_what_its_command_prints(name):
    text = (FOLDER / name).read_text()
    assert text == printed(text), "PYTHONPATH=.:tests python -m support.launch_examples prints it anew"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_sound(name):
    assert (FOLDER / name).read_text().startswith("#!/bin/bash\n")
    assert subprocess.run(["bash", "-n", FOLDER / name]).returncode == 0
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "--shell=bash", FOLDER / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_lists_all():
    page = (FOLDER / "README.md").read_text()
    assert [path.name for path in sorted(FOLDER.iterdir()) if f"]({path.name})" not in page] == ["README.md"]
