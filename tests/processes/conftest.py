"""What whole runs, and tests on the hosts of a lab, share."""

import fcntl
import functools
import os
from pathlib import Path

import pytest

from support.lab import RANK, impossible, outside
from support.programs import jaxnet, write_program
from support.training_runs import finish


@pytest.fixture
def network():
    """The machine's network, which no test of another worker changes meanwhile."""
    with (Path(os.environ["TESTS_COMPILE_CACHE"]) / "network.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
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
def run(tmp_path_factory):
    """`run(place, *overrides)`: the workdir of a run that nothing broke; each is run once."""

    @functools.cache
    def unbroken(*way):
        workdir = tmp_path_factory.mktemp("run")
        finish(workdir, *way)
        return workdir

    return unbroken
