"""The one exception for what a user can mend, how a command ends when it is raised, and output that may fail."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO

BAD_INPUT_STATUS = 2
INTERRUPTED_STATUS = 130

_dropping = threading.Lock()


class InputError(Exception):
    """Something the user gave is wrong: a key, a value, a file, an environment variable.

    The message is complete by itself: it names what is wrong, says what was got and what was
    wanted, and how to fix it. `train.py` and the `jaxnet` command print it as one `error: ...`
    line without a traceback and exit with status 2.
    """


def one_line(error: object) -> str:
    """What an error of somebody else's says, without its line breaks.

    >>> one_line(ValueError("no such key:\\n  'a'"))
    "no such key: 'a'"
    """
    return " ".join(str(error).split())


def say(line: str, stream: TextIO | None = None) -> None:
    """Print a line on `stream`, else stderr, in one write: of several processes, mpirun mixes what comes in pieces.

    Never fails for a reason of the system, see `spared`.
    """
    stream = stream or sys.stderr
    with spared(stream):
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:  # a letter that the stream lacks, as in the name of a directory
            stream.write(f"{line}\n".encode("ascii", "backslashreplace").decode())
        stream.flush()


@contextmanager
def spared(stream: IO[Any]) -> Iterator[None]:
    """A failure inside to write to `stream` is none of the program: what it did not take is dropped.

    So on a full disk. Where nobody reads any more, as after `| head`, the stream leads nowhere from then on.
    """
    try:
        yield
    except OSError as error:
        drop(stream, error)


def drop(stream: IO[Any], error: OSError) -> None:
    """Empty a `stream` that failed with `error`: it would try what it holds again with each line and at the exit."""
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
    """Run `main` and end the process with the status that it returns, without tracebacks for users' mistakes.

    An `InputError` becomes one `error: ...` line on stderr and status 2; Ctrl-C becomes status 130.
    A program of several processes gives `jaxnet.cluster.start.leave` as `leave`: a process that
    fails must not wait for others that wait for it.
    """
    try:
        status = main()
    except InputError as error:
        line = " ".join(str(error).split("\n"))  # what it quotes may span several
        say(f"error: {line}")
        status = BAD_INPUT_STATUS
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
    leave(status)
