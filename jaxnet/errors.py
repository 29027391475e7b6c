"""The exception for mistakes of users, how a command ends on it, and output that must not fail."""

import functools
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO

BAD_INPUT_STATUS = 2
INTERRUPTED_STATUS = 130

_dropping = threading.Lock()  # file descriptors belong to the whole process


class InputError(Exception):
    """Something that the user gave is wrong: a key, a value, a file, an environment variable.

    The message is complete: it names what is wrong, what was got, what was wanted, and how to fix it. `train.py` and
    the `jaxnet` command print it as one `error: ...` line, without a traceback, and exit with status 2.
    """


def one_line(error: object) -> str:
    """The message of another library's error on one line.

    >>> one_line(ValueError("no such key:\\n  'a'"))
    "no such key: 'a'"
    """
    return " ".join(str(error).split())


# ---- Code of users, which may raise anything, and values of theirs, which may not even be shown -------


_LONGEST = 600  # letters of an error of another's code: JAX's may fill a screen


def on_one_line(text: str) -> str:
    """Text without line ends, and with escapes for whatever else a terminal would not show as a letter.

    >>> on_one_line("a\\n  b\\x1b[2J")
    'a   b\\\\x1b[2J'
    """
    text = text.replace("\r\n", "\n").replace("\n", " ")
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def shown(value: object, most: int = 60) -> str:
    """A value on one line, as Python writes it, cut short; where it cannot be shown, its type.

    >>> shown("x" * 100, most=5)
    "'xxxx"
    """
    try:
        return on_one_line(repr(value))[:most]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def error_text(error: BaseException) -> str:
    """An error that code of others has raised, on one line: its type, and what it says if that can be said.

    >>> error_text(ValueError("first\\nsecond")), error_text(ValueError())
    ('ValueError: first second', 'ValueError')
    """
    kind = on_one_line(type(error).__name__)
    try:
        said = on_one_line(one_line(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # of its own __str__
        said = ""
    return f"{kind}: {said[:_LONGEST]}" if said else kind


@contextmanager
def users_code(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """Inside, code runs that a user has written, named `what`: whatever it raises becomes an InputError with its line.

    InputErrors, Ctrl-C and errors of the kinds `passing` pass.

    >>> with users_code("the model"):
    ...     [][0]
    Traceback (most recent call last):
    jaxnet.errors.InputError: the model failed: IndexError: list index out of range
    """
    through: tuple[type[BaseException], ...] = (InputError, KeyboardInterrupt, *passing)
    try:
        yield
    except through:
        raise
    except BaseException as error:
        raise failure(what, error) from error


def failure(what: str, error: BaseException) -> InputError:
    """The InputError that says that `what`, code of the user's, raised `error`, and in which line."""
    return InputError(f"{what} failed{users_line(error)}: {error_text(error)}")


def users_line(error: BaseException) -> str:
    """The last line of a file of the user's that an error came through, as ' in line 3 of mine.py'; '' if none."""
    frames = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = [(name, number) for name, number in frames if not name.startswith((*_not_users(), "<"))]
    return f" in line {own[-1][1]} of {own[-1][0]}" if own else ""


@functools.cache
def _not_users() -> tuple[str, ...]:
    """Where code lies that no user has written: this package, the packages that are installed, and Python."""
    installed = {sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*(f"{folder}{os.sep}" for folder in (str(Path(__file__).parent), *installed)),)


@contextmanager
def causes_shown(wanted: bool) -> Iterator[None]:
    """If `wanted`, print the traceback of the error behind an InputError that leaves, which is the user's own."""
    try:
        yield
    except InputError as error:
        if wanted and (cause := _cause(error)) is not None:
            say("".join(traceback.format_exception(cause)).rstrip("\n"))
        raise


def _cause(error: BaseException) -> BaseException | None:
    """The first error behind an InputError that is no InputError, nor one of those that JAX puts between."""
    found: BaseException | None = error
    while isinstance(found, InputError) or type(found).__name__ in ("SimplifiedTraceback", "UnfilteredStackTrace"):
        assert found is not None
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return found


# ---- Output -------------------------------------------------------------------------------------------


def say(line: str, stream: TextIO | None = None) -> None:
    """Print a line on `stream`, by default stderr, in one write, because mpirun mixes pieces of several processes.

    The system cannot make it fail, see `spared`.
    """
    stream = stream or sys.stderr
    with spared(stream):
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:  # the stream's encoding lacks a letter, say in the name of a directory
            stream.write(f"{line}\n".encode("ascii", "backslashreplace").decode())
        stream.flush()


@contextmanager
def spared(stream: IO[Any]) -> Iterator[None]:
    """Suppress OSErrors of writes to `stream` inside, and drop the output that was not written.

    On a full disk only that output is lost. A stream that has lost its reader, as after `| head`, leads to /dev/null
    from then on.
    """
    try:
        yield
    except OSError as error:
        drop(stream, error)


def drop(stream: IO[Any], error: OSError) -> None:
    """Empty the buffer of a `stream` that failed with `error`; else each later line, and the exit, would fail again."""
    # Point the file descriptor at /dev/null, flush into it, and point it back, unless its reader has gone.
    with _dropping, suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        file = stream.fileno()
        before = os.dup(file)
        os.dup2(nowhere.fileno(), file)
        try:
            stream.flush()
        finally:
            if not isinstance(error, BrokenPipeError):
                os.dup2(before, file)
            os.close(before)


def exit_cleanly(main: Callable[[], int], leave: Callable[[int], NoReturn] = sys.exit) -> NoReturn:
    """Run `main` and end the process with the status that it returns, without a traceback for a user's mistake.

    An `InputError` becomes one `error: ...` line on stderr and status 2. Ctrl-C becomes status 130. A program of
    several processes gives `jaxnet.cluster.start.leave` as `leave`, because a process that fails must not wait for
    others that wait for it.
    """
    try:
        status = main()
    except InputError as error:
        say(f"error: {on_one_line(str(error))}")  # a quoted value may span several lines
        status = BAD_INPUT_STATUS
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
    leave(status)
