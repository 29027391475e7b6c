"""A line that cannot be written is dropped, and not tried again."""

import os

import pytest

from jaxnet.errors import say
from support.disks import files_no_longer_than


@pytest.mark.parametrize("length", [10, 100_000])
def test_of_a_full_disk_lines_are_lost_and_the_next_is_written_when_there_is_room(length, tmp_path):
    path = tmp_path / "log"
    with path.open("w") as stream:
        say("first", stream)
        with files_no_longer_than(6):
            for _ in range(3):
                say("x" * length, stream)
        say("last", stream)
    assert path.read_text() == "first\nlast\n"


def test_letters_that_the_stream_lacks_are_written_as_their_numbers(tmp_path):
    path = tmp_path / "log"
    with path.open("w", encoding="ascii") as stream:
        say("continuing runs/\u00fc from step 3", stream)
    assert path.read_text() == "continuing runs/\\xfc from step 3\n"


def test_a_line_that_nobody_reads():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:  # whose end writes what it still holds
        for length in (10, 100_000, 10):
            say("x" * length, stream)
