"""A line that cannot be written is dropped, and not tried again."""

import logging
import os
import sys

import pytest

from jaxnet.cli.main import main
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


@pytest.fixture
def progress():
    """The logger that a terminal shows, as a command finds it."""
    logger = logging.getLogger("jaxnet.progress")
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def test_on_a_terminal_it_is_said_what_is_under_way_and_cleared_before_results_and_errors(
    capsys, monkeypatch, progress
):
    assert progress.handlers == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(SystemExit):
        main(["simulate", "--paper", "horovod_779"])
    shown = capsys.readouterr()
    assert shown.err == "\r\x1b[Khorovod_779: 1 of 1\r\x1b[K"
    assert shown.out.startswith("Horovod, up to 128 V100")
    with pytest.raises(SystemExit):
        main(["plan", "--config", "configs/digits.py", "batch_size=0"])
    assert capsys.readouterr().err.startswith("\r\x1b[Kpreparing the run\r\x1b[Kerror: batch_size=0: ")


def test_elsewhere_nothing_of_it_is_said(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--paper", "horovod_779"])
    assert capsys.readouterr().err == ""
