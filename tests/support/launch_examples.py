"""The files of launch/ that launchers print: the command that prints each stands in the file's header.

`PYTHONPATH=.:tests python -m support.launch_examples` prints them anew.
"""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

from jaxnet.cli.main import run

FOLDER = Path(__file__).parents[2] / "launch"
NAMES = ("jobset.yaml", "jobset-tpu.yaml", "mpi.sh", "sky.yaml", "slurm.sbatch", "slurm-container.sbatch")
# `# Printed in FOLDER by:` (without `in FOLDER` where it makes no difference), then the command on lines of its own.
_HEADER = re.compile(r"# Printed(?: in (?P<folder>\S+))? by:\n(?P<command>(?:#   .*\\\n)*#   .*\n)")


def printed(text):
    """What the command in the header of `text` prints, with that header in its place."""
    header = _HEADER.search(text)
    words = shlex.split(header["command"].replace("\\\n#", "").removeprefix("#"))
    assert Path(words[0]).name == "jaxnet"
    made = _output(words[1:], Path(header["folder"] or "/"))
    first, rest = made.split("\n", 1)
    return f"{first}\n{header[0]}{rest}" if first.startswith("#!") else f"{header[0]}{made}"


def _output(arguments, folder):
    """The output of `jaxnet`, run in `folder` with the Python of its .venv and without variables that travel."""
    python = str(folder / ".venv/bin/python")
    with (
        mock.patch.object(Path, "cwd", return_value=folder),
        mock.patch.object(sys, "executable", python),
        mock.patch.dict("os.environ", clear=True),
        contextlib.redirect_stdout(io.StringIO()) as output,
    ):
        assert run(arguments) == 0
    return output.getvalue()


if __name__ == "__main__":
    for name in NAMES:
        (FOLDER / name).write_text(printed((FOLDER / name).read_text()))
