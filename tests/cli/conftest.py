"""What tests of commands share."""

import pytest


@pytest.fixture
def new_workdir(tmp_path):
    """Where a run would write; one that is refused must not even make it."""
    directory = tmp_path / "workdir"
    yield str(directory)
    assert not directory.exists()
