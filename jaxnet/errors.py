"""The exception for mistakes of users, how a command ends on it, and output that must not fail."""

import os
import select
import sys
import threading
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


def has_lost_reader(stream: IO[Any]) -> bool:
    """Whether nobody reads the pipe to which `stream` writes, as after `| head`."""
    ends = select.poll()
    try:
        ends.register(stream.fileno(), 0)  # for nothing but a broken connection, which poll always reports
    except (OSError, ValueError):  # it has no file, or is closed
        return False
    return bool(ends.poll(0))


def exit_cleanly(main: Callable[[], int], leave: Callable[[int], NoReturn] = sys.exit) -> NoReturn:
    """Run `main` and end the process with the status that it returns, without a traceback for a user's mistake.

    An `InputError` becomes one `error: ...` line on stderr and status 2. Ctrl-C becomes status 130. A program of
    several processes gives `jaxnet.cluster.start.leave` as `leave`, because a process that fails must not wait for
    others that wait for it.
    """
    try:
        status = main()
    except InputError as error:
        line = " ".join(str(error).split("\n"))  # a quoted value may span several lines
        say(f"error: {line}")
        status = BAD_INPUT_STATUS
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
    leave(status)
