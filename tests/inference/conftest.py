"""One run for all tests of inference."""

import pytest

from support.trained import trained, write_digits


@pytest.fixture(scope="session")
def workdir(tmp_path_factory):
    """Of a run that has ended; nobody writes there."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    trained(directory)
    return directory


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Paths of four digits as PNG files."""
    return write_digits(tmp_path_factory.mktemp("pictures"))
