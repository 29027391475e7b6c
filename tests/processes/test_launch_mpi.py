"""`jaxnet launch mpi` with a real mpirun: JAX joins what it starts, or MPI does, and all arrives as it was."""

import shutil

import pytest

from support.mpirun import missing
from support.programs import jaxnet, write_program

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun (Debian: apt-get install openmpi-bin)"),
]

_OPTIONS = [f"--option={word}" for word in ("--oversubscribe", "--allow-run-as-root", "--bind-to", "none")]


# A line in one write: print makes several, which mpirun mixes with those of other ranks.
LINE = """
import os, sys

def line(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""


def launch(*words, options=(), **environment):
    return jaxnet("launch", "mpi", "--processes", "2", *_OPTIONS, *options, "--", *words, **environment)


def test_jax_joins_the_processes(tmp_path):
    text = """
from jaxnet.cluster.start import leave
from jaxnet.cluster.start import start
from jaxnet.errors import exit_cleanly

def main():
    cluster = start()
    place = cluster.detected_by, cluster.process_index, cluster.process_count
    line(*place, sys.argv[1:], repr(os.environ["VALUE"]))
    return 0

exit_cleanly(main, leave)
"""
    value = "it's; $HOME\nand, more=2"
    with launch(write_program(tmp_path, LINE + text), "a b", "$x", options=["--env", f"VALUE={value}"]) as job:
        assert job.finish() == 0, job.err
        expected = f"2 ['a b', '$x'] {value!r}"
        assert sorted(job.out) == [f"variables {rank} {expected}" for rank in range(2)]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_mpi_joins_the_ranks(tmp_path):
    text = """
from mpi4py import MPI
line(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), os.environ.get("JAX_PROCESS_ID"))
"""
    with launch(write_program(tmp_path, LINE + text), options=["--transport", "mpi"]) as job:
        assert job.finish() == 0, job.err
        assert job.out == ["3 None"] * 2


def test_a_status_is_passed_on():
    with launch("sh", "-c", 'test "$JAX_PROCESS_ID" = 0 || exit 7') as job:
        assert job.finish() == 7
