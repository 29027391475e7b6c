"""docs/guide/ten_minutes.md as a reader goes through it: every block in its order, in one folder."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.markdown import as_a_reader, blocks
from support.programs import clean_environment

PAGE = "docs/guide/ten_minutes.md"
BLOCKS = sorted(
    (block for language in ("sh", "python") for block in blocks(PAGE, language) if not block.file),
    key=lambda block: block.line,
)
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run_block(block, folder):
    """What a block of commands prints, or a program on eight devices."""
    command = ["bash", "-ec", block.text] if block.language == "sh" else [sys.executable, "-c", block.text]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = clean_environment(
        PATH=path, XLA_FLAGS="", **{"JAX_NUM_CPU_DEVICES": "8"} if block.language == "python" else {}
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{block}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("reader")
    as_a_reader(PAGE, made)
    return made


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_after_those_before_it(block, folder):
    printed = run_block(block, folder)
    wanted = f"...{block.output or ''}"  # what a page shows is what is printed last
    assert doctest.OutputChecker().check_output(wanted, printed, doctest.ELLIPSIS), f"{block}:\n{printed}"


def test_what_the_blocks_leave(folder):
    assert {path.name for path in folder.glob("*.html")} == {"first.html", "three.html"}
    assert (folder / "runs/long/summary.json").exists()
