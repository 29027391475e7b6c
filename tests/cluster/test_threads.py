"""On one core, XLA:CPU still has a thread that computes while another waits for a collective."""

import subprocess
import sys

import pytest

from support.programs import clean_environment

PROGRAM = """
import os, sys
from pathlib import Path
from jaxnet.cluster.start import spare_thread
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
spare_thread()
import jax
jax.jit(lambda x: x + 1)(1).block_until_ready()
names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")]
print(sum(name.startswith("tf_XLAEigen") for name in names))
"""


@pytest.mark.processes
@pytest.mark.parametrize(("variables", "threads"), [({}, 2), ({"NPROC": "1"}, 1), ({"PJRT_NPROC": "3"}, 3)])
def test_one_core_gets_two_threads_unless_the_user_said_otherwise(variables, threads):
    environment = clean_environment(**variables)
    done = subprocess.run([sys.executable, "-c", PROGRAM, "1"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, str(threads)), done.stderr
