"""What whole runs, and tests on the hosts of a lab, share."""

import fcntl
import functools
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.lab import RANK, impossible, outside
from support.programs import jaxnet, write_program
from support.training_runs import finish


@contextmanager
def locked(path):
    """Keep the test workers of this run of pytest apart."""
    with path.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


@pytest.fixture
def network():
    """The machine's network, which no test of another worker changes meanwhile."""
    with locked(Path(os.environ["TESTS_SHARED"]) / "network.lock"):
        yield


@pytest.fixture
def lab(tmp_path, network):
    """`lab(text, *options, hosts=2)`: a program on every host, started. Afterwards all outside is as before."""
    if reason := impossible():
        pytest.skip(reason)

    def start(text, *options, hosts=2, arguments=(), **environment):
        program = write_program(tmp_path, RANK + text)
        return jaxnet("lab", "--hosts", str(hosts), *options, "--", program, *arguments, **environment)

    before = outside()
    yield start
    assert outside() == before


@pytest.fixture(scope="session")
def run():
    """`run(place, *overrides)`: the workdir of an unbroken run, which all test workers share; change a copy."""
    runs = Path(os.environ["TESTS_SHARED"]) / "runs"
    runs.mkdir(exist_ok=True)

    @functools.cache
    def unbroken(*way):
        workdir = runs / hashlib.sha256(repr(way).encode()).hexdigest()[:16]
        ended = workdir.with_suffix(".ended")
        with locked(workdir.with_suffix(".lock")):
            if not ended.exists():
                finish(workdir, *way)
                ended.touch()
        return workdir

    return unbroken
