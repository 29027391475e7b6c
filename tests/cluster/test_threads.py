"""A process of one core: a thread that computes while another waits for a collective, and memory for each thread."""

import os
import subprocess
import sys

import pytest

from support.programs import clean_environment

PROGRAM = """
import os, sys
from pathlib import Path
from jaxnet.cluster.start import share_one_core
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
share_one_core()
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


ARENAS = """
import ctypes, os, threading
from jaxnet.cluster.start import share_one_core
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
share_one_core()
library, all_there = ctypes.CDLL(None), threading.Barrier(40)
library.malloc.restype = ctypes.c_void_p
def allocate():
    library.malloc(1 << 12)
    all_there.wait()
threads = [threading.Thread(target=allocate) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(b"arenas.xml", b"w"))
library.malloc_info(0, file)
library.fclose(file)
"""


@pytest.mark.processes
def test_on_one_core_threads_do_not_wait_for_each_others_memory(tmp_path):
    """glibc would have 40 threads share 8 arenas, and who gives way could lose the core while it holds one."""
    if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
        pytest.skip("another C library than glibc")
    command = [sys.executable, "-c", ARENAS]
    subprocess.run(command, env=clean_environment(), cwd=tmp_path, check=True)
    assert (tmp_path / "arenas.xml").read_text().count("<heap ") > 40
