"""A program that starts again with huge pages: once, as it was, and not where that would not help or could harm."""

import json
import sys

import pytest

from jaxnet.cluster.huge_pages import VARIABLE, wanted
from support.programs import Program, write_program

ASKED = "glibc.malloc.hugetlb=1"
MEBIBYTES = 64
SMALL_PAGES = MEBIBYTES * 256
BEGIN = """
import os, sys
from jaxnet.cluster.huge_pages import use_huge_pages
use_huge_pages()
"""
SAY = f"""{BEGIN}
import json
print(json.dumps([os.getpid(), sys.argv[1:], sys.flags.optimize, os.environ.get("GLIBC_TUNABLES")]))
"""
FILL = f"""{BEGIN}
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
libc.memset(libc.malloc({MEBIBYTES} << 20), 1, {MEBIBYTES} << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

gives_when_asked = pytest.mark.skipif(wanted({}) is None, reason="this system does not give huge pages if asked")


def run(text, folder, *arguments, options=(), **environment):
    """The last line that the program `text` printed, and the number of its process."""
    command = [sys.executable, *options, write_program(folder, text), *arguments]
    with Program(command, **{VARIABLE: "", **environment}) as program:
        assert program.finish() == 0, program.err
        return json.loads(program.out[-1]), program.pid


@gives_when_asked
def test_the_program_goes_on_as_the_same_process_with_the_same_arguments(tmp_path):
    said, pid = run(SAY, tmp_path, "a", "b c", "", options=["-OO"])
    assert said == [pid, ["a", "b c", ""], 2, ASKED]


@gives_when_asked
def test_memory_comes_in_huge_pages(tmp_path):
    faults, _ = run(FILL, tmp_path)
    assert faults < SMALL_PAGES / 2
    without, _ = run(FILL, tmp_path, **{VARIABLE: "glibc.malloc.hugetlb=0"})
    assert without >= SMALL_PAGES


def test_a_choice_of_the_user_stays(tmp_path):
    said, _ = run(SAY, tmp_path, **{VARIABLE: "glibc.malloc.hugetlb=0"})
    assert said[-1] == "glibc.malloc.hugetlb=0"


@pytest.mark.parametrize("begun", ["sys.modules['mpi4py.MPI'] = sys", "sys.settrace(lambda *_: None)"])
def test_mpi_that_has_begun_and_debuggers_are_left_alone(begun, tmp_path):
    said, _ = run(f"import sys\n{begun}\n{SAY}", tmp_path)
    assert said[-1] == ""


@pytest.mark.parametrize(
    ("given", "kernel", "libc", "value"),
    [
        ({}, "always [madvise] never", "glibc 2.35", ASKED),
        ({}, "always [madvise] never", "glibc 3.0", ASKED),
        ({VARIABLE: ""}, "always [madvise] never", "glibc 2.36", ASKED),
        (
            {VARIABLE: "glibc.malloc.arena_max=2"},
            "always [madvise] never",
            "glibc 2.36",
            f"glibc.malloc.arena_max=2:{ASKED}",
        ),
        ({VARIABLE: "glibc.malloc.hugetlb=2"}, "always [madvise] never", "glibc 2.36", None),
        ({}, "[always] madvise never", "glibc 2.36", None),
        ({}, "always madvise [never]", "glibc 2.36", None),
        ({}, "", "glibc 2.36", None),
        ({}, "always [madvise] never", "glibc 2.34", None),
        ({}, "always [madvise] never", "", None),
    ],
)
def test_what_is_asked_for(given, kernel, libc, value):
    assert wanted(given, kernel, libc) == value


@gives_when_asked
@pytest.mark.parametrize("command", [["train.py", "--help"], ["-m", "jaxnet", "--help"]])
def test_the_commands_begin_with_it_before_they_import_jax(command, tmp_path):
    """What they import before is imported twice."""
    with Program([sys.executable, "-X", "importtime", *command], **{VARIABLE: ""}) as program:
        assert program.finish() == 0
        imported = [line.rpartition("|")[2].strip() for line in program.err]
    again = [index for index, name in enumerate(imported) if name == "jaxnet.cluster.huge_pages"]
    assert len(again) == 2
    assert "jax" not in imported[: again[1]]
