"""A disk that is soon full."""

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(place):
    """A file system of 8 MiB at `place`, while it lasts; skips the test for whom may not mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "jaxnet-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)
