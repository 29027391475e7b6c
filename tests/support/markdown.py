"""The code blocks of a Markdown page, and how they are run."""

import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from support.programs import ROOT, clean_environment

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
_FILE = re.compile(r"# (\w+\.py)\n")
_NEEDED = ("configs", "train.py")  # what programs and commands of a page name, relative to the root


class Block(NamedTuple):
    """A fenced block; `output` is the ```text block that directly follows it, or None."""

    page: str
    line: int
    language: str
    text: str
    output: str | None

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def file(self):
        """The name under which readers save a block that begins with the comment `# NAME.py`, or None."""
        match = _FILE.match(self.text)
        return match and match[1]


def blocks(page, language):
    """The blocks of a page (a path in the repository) in that language."""
    text = (ROOT / page).read_text()
    fences = list(_FENCE.finditer(text))
    return [
        Block(str(page), text.count("\n", 0, fence.start()) + 1, fence[1], fence[2], _output(text, fence, after))
        for fence, after in zip_longest(fences, fences[1:])
        if fence[1] == language
    ]


def _output(text, fence, after):
    if after is None or after[1] != "text" or text[fence.end() : after.start()].strip():
        return None
    return after[2]


def as_a_reader(page, folder):
    """Make `folder` what a reader of the page has: the files of the repository, and those that the page shows."""
    for name in _NEEDED:
        (folder / name).symlink_to(ROOT / name)
    for block in blocks(page, "python"):
        if block.file:
            (folder / block.file).write_text(block.text)


def run_python(block, folder):
    """Run a block as it stands, in a process of its own on eight emulated devices; what it printed."""
    as_a_reader(block.page, folder)
    program = folder / "block.py"
    program.write_text(block.text)
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        env=clean_environment(JAX_NUM_CPU_DEVICES="8"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{block} failed:\n{done.stderr}"
    return done.stdout


def check_python(block, folder):
    """Run a block; the output that a page shows is what it prints last."""
    printed = run_python(block, folder)
    assert printed.endswith(block.output or ""), f"{block} printed:\n{printed}"


def broken_links(page):
    """Links of a page to files that are not there."""
    folder = (ROOT / page).parent
    targets = _LINK.findall((ROOT / page).read_text())
    return [target for target in targets if "://" not in target and not (folder / target).exists()]


def pages(folder):
    """The Markdown pages below a folder of the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in Path(ROOT, folder).rglob("*.md"))
