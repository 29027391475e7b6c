"""What may stand where a program expects a file that it wrote."""

import os
import socket
from pathlib import Path

DEEP = "[" * 100_000 + "]" * 100_000
"""More lists in each other than Python reads."""


def pipe(path):
    """Whoever opens it waits for a writer."""
    os.mkfifo(path)


def directory(path):
    path.mkdir()


def loop(path):
    path.symlink_to(path.name)


def to_a_device(path):
    """It has no end."""
    path.symlink_to("/dev/zero")


def a_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def endless(path):
    """A terabyte, of which the disk holds nothing."""
    path.touch()
    os.truncate(path, 1 << 40)


def deep(path):
    path.write_text(DEEP)


ODD = (pipe, directory, loop, to_a_device, a_socket, endless)
"""Each makes something at a path that cannot be read as a file."""
