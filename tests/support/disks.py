"""A disk that is soon full."""

import os
import resource
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


@contextmanager
def files_no_longer_than(size):
    """What a quota does, or a disk that is full: the rest of what this process writes is refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
