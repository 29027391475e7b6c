"""Text of strangers reaches a terminal as text, on one line, and not without end."""

import io
import logging
import sys

import pytest

from jaxnet.errors import InputError, exit_cleanly, printable, say, show_warnings

WILD = "a\x1b[31m\x9b\rb\x07\u202ec\u2028\ud800\x00"
TAME = r"a\x1b[31m\x9b\rb\x07\u202ec\u2028\ud800\x00"


@pytest.mark.parametrize("text", ["plain", "\u00fc\u6f22\u00a0\U0001f600", "a \\ b", ""])
def test_what_a_terminal_shows_stays(text):
    assert printable(text) == text


def test_control_characters_are_numbers():
    assert printable(WILD) == TAME
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"
    assert printable(printable(WILD)) == TAME


def test_an_error_is_one_printable_line_wherever_it_is_shown():
    assert str(InputError(f"{WILD}\nerror: all is well")) == f"{TAME} error: all is well"
    assert f"{InputError(WILD)}" == TAME


def ended(error, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit):
        exit_cleanly(fail)
    return capsys.readouterr().err


def test_an_error_is_cut_at_its_end(capsys):
    assert ended(InputError(f"{WILD}\nb"), capsys) == f"error: {TAME} b\n"
    said = ended(InputError("x" * 10**6), capsys)
    assert len(said) < 5000
    assert said.endswith("... (1,000,000 characters)\n")


def test_the_lines_of_a_screen_stay_lines():
    stream = io.StringIO()
    say(f"one\t1\n{WILD}", stream)
    assert stream.getvalue() == f"one\t1\n{TAME}\n"


@pytest.fixture
def warnings(monkeypatch):
    logger, stream = logging.getLogger("jaxnet"), io.StringIO()
    before = logger.propagate, list(logger.handlers)
    monkeypatch.setattr(sys, "stderr", stream)
    logger.handlers[:] = []
    show_warnings()
    yield lambda: stream.getvalue()
    logger.propagate, logger.handlers[:] = before


def test_a_warning_is_one_line(warnings):
    whole, shown = WILD.replace("\ud800", ""), TAME.replace(r"\ud800", "")  # pytest sends what is logged as UTF-8
    logging.getLogger("jaxnet").warning("%s is damaged", f"{whole}\nwarning: b")
    assert warnings() == f"warning: {shown}\\nwarning: b is damaged\n"


def test_a_traceback_stays_as_it_is(warnings):
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("jaxnet").exception("of a user")
    first, *lines = warnings().splitlines()
    assert first == "warning: of a user"
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: a", "b"]
