"""The exception for mistakes of users, how a command ends on it, and output that must not fail.

What is printed may hold the words of strangers: names in a file of weights, paths, what another host has said. So
whatever a terminal could take for a command is shown as its number.
"""

import faulthandler
import functools
import gc
import logging
import os
import select
import signal
import sys
import sysconfig
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, TextIO

BAD_INPUT_STATUS = 2
INTERRUPTED_STATUS = 130

_MOST_CHARACTERS = 4000  # of an error or a warning
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # Unicode's categories: controls, marks of direction, halves
# of characters, ends of lines

_dropping = threading.Lock()  # file descriptors belong to the whole process


# ---- Text of strangers ----------------------------------------------------------------------------------


def printable(text: object, most: int | None = None, *, keep: str = "") -> str:
    """A text with its control characters as numbers, and cut off after `most` characters.

    Control characters are those that a terminal obeys or that change the order of others: escapes, ends of lines, marks
    of direction, lone surrogates. Those in `keep` stay.

    >>> print(printable("a\\x1b[31m\\nb"), printable("x" * 100, 10))
    a\\x1b[31m\\nb xxxxxxxxxx... (100 characters)
    """
    whole = str(text)
    shown = whole if most is None or len(whole) <= most else f"{whole[:most]}... ({len(whole):,} characters)"
    if shown.isprintable():
        return shown
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in _UNPRINTABLE and letter not in keep
        else letter
        for letter in shown
    )


def on_one_line(text: str) -> str:
    """A `printable` text without line ends.

    >>> on_one_line("a\\n  b\\x1b[2J")
    'a   b\\\\x1b[2J'
    """
    return printable(text.replace("\r\n", "\n").replace("\n", " "))


# ---- Mistakes of users ----------------------------------------------------------------------------------


class InputError(Exception):
    """Something that the user gave is wrong: a key, a value, a file, an environment variable.

    The message is complete: it names what is wrong, what was got, what was wanted, and how to fix it. `train.py` and
    the `jaxnet` command print it as one `error: ...` line, without a traceback, and exit with status 2.

    As text it is one line, and `printable`.
    """

    def __str__(self) -> str:
        return on_one_line(super().__str__())  # a quoted value may span several lines


def one_line(error: object) -> str:
    """The message of another library's error on one line.

    >>> one_line(ValueError("no such key:\\n  'a'"))
    "no such key: 'a'"
    """
    return " ".join(str(error).split())


# ---- Code of users, which may raise anything, and values of theirs, which may not even be shown -----------

_LONGEST = 600  # letters of an error of another's code: JAX's may fill a screen


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
        said = printable(one_line(error))
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


# ---- Output ---------------------------------------------------------------------------------------------


def say(line: str, stream: TextIO | None = None) -> None:
    """Print a line on `stream`, by default stderr, in one write, because mpirun mixes pieces of several processes.

    Text of several lines stays that; what else is not `printable` is shown as numbers. The system cannot make it fail,
    see `spared`.
    """
    stream, line = stream or sys.stderr, printable(line, keep="\n\t")
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


def has_lost_reader(stream: IO[Any]) -> bool:
    """Whether nobody reads the pipe to which `stream` writes, as after `| head`."""
    ends = select.poll()
    try:
        ends.register(stream.fileno(), 0)  # for nothing but a broken connection, which poll always reports
    except (OSError, ValueError):  # it has no file, or is closed
        return False
    return bool(ends.poll(0))


# ---- Warnings -------------------------------------------------------------------------------------------


def show_warnings() -> None:
    """Warnings of jaxnet become one line of stderr each, `warning: ...`, as errors are."""
    handler = _Spared()
    handler.setFormatter(_OneLine("warning: %(message)s"))
    logger = logging.getLogger("jaxnet")
    logger.handlers[:] = [*(each for each in logger.handlers if not isinstance(each, _Spared)), handler]
    logger.propagate = False  # to the handler that importing Orbax installs, with another format


class _OneLine(logging.Formatter):
    """The message on one `printable` line; a traceback below it stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), _MOST_CHARACTERS)


class _Spared(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            drop(self.stream, error)
        else:
            super().handleError(record)


# ---- The end of a command -------------------------------------------------------------------------------


def exit_cleanly(
    main: Callable[[], int], leave: Callable[[int], NoReturn] = sys.exit, *, verbose: bool = False
) -> NoReturn:
    """Run `main` and end the process with the status that it returns, without a traceback for a user's mistake.

    An `InputError` becomes one `error: ...` line on stderr and status 2. Ctrl-C becomes status 130. A program of
    several processes gives `jaxnet.cluster.start.leave` as `leave`, because a process that fails must not wait for
    others that wait for it. `verbose` shows what is behind an InputError, see `causes_shown`. A crash in native code
    shows where Python was.
    """
    _open_standard_streams()
    _show_crashes()
    with _interrupts_noted() as interrupted:
        try:
            with causes_shown(verbose), _shared_gpu_told():
                status = main()
        except InputError as error:
            logging.getLogger("jaxnet.progress").info("")  # clears the line of `command_line.show_progress`
            say(f"error: {printable(error, _MOST_CHARACTERS)}")
            status = BAD_INPUT_STATUS
        except KeyboardInterrupt:
            interrupted.set()
            status = INTERRUPTED_STATUS
        except Exception:
            if not interrupted.is_set():
                raise
            status = INTERRUPTED_STATUS  # a library made of Ctrl-C an error of its own, as C does in an import
    leave(status)


@contextmanager
def _shared_gpu_told() -> Iterator[None]:
    """Make an InputError of what NCCL says in the first collective, wherever that is."""
    try:
        yield
    except Exception as error:
        if "Duplicate GPU detected" not in str(error):
            raise
        raise InputError(
            "two processes of this host use the same GPU, and NCCL wants one for each: start no more than there are, "
            "and give each its own by CUDA_VISIBLE_DEVICES, as jaxnet launch local does, or set JAX_PLATFORMS=cpu"
        ) from error


def _open_standard_streams() -> None:
    """Lead closed streams to /dev/null: the next file that is opened would get the number, and all that is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115  # for good


def _show_crashes() -> None:
    """A process that a signal such as SIGSEGV kills writes the Python stacks of its threads first."""
    if faulthandler.is_enabled():
        return
    faulthandler.enable(2)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGABRT, signal.SIG_DFL)  # who aborts has said why: JAX, where another process has died


_AGAIN_SECONDS = 0.05  # until Ctrl-C is tried again


def _drops(frame: FrameType | None) -> bool:
    """Whether Python drops what is raised here: in a finalizer, or in a callback as garbage is collected."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        of_weakref = name in ("remove", "_remove") and file.endswith(("weakref.py", "_weakrefset.py"))
        if of_weakref or name == "__del__" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _interrupts_noted() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C sets inside, besides what it does. Once it is set, the next one ends the process.

    Only where Ctrl-C does what it does by default, and not in a thread.
    """
    interrupted = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if _drops(frame):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        interrupted.set()
        signal.default_int_handler(number, frame)

    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield interrupted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:  # a Ctrl-C while Python ends would be a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL if interrupted.is_set() else signal.default_int_handler)
