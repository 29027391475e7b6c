"""What tests on the hosts of a lab share."""

import pytest

from support.lab import RANK, impossible, outside
from support.programs import jaxnet, write_program


@pytest.fixture
def lab(tmp_path):
    """`lab(text, *options, hosts=2)`: a program on every host, started. Afterwards all outside is as before."""
    if reason := impossible():
        pytest.skip(reason)

    def start(text, *options, hosts=2, arguments=(), **environment):
        program = write_program(tmp_path, RANK + text)
        return jaxnet("lab", "--hosts", str(hosts), *options, "--", program, *arguments, **environment)

    before = outside()
    yield start
    assert outside() == before
