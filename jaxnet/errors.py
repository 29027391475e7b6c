"""The one exception for what a user can mend, and how a command ends when it is raised."""

import sys
from collections.abc import Callable
from typing import NoReturn

BAD_INPUT_STATUS = 2
INTERRUPTED_STATUS = 130


class InputError(Exception):
    """Something the user gave is wrong: a key, a value, a file, an environment variable.

    The message is complete by itself: it names what is wrong, says what was got and what was
    wanted, and how to fix it. `train.py` and the `jaxnet` command print it as one `error: ...`
    line without a traceback and exit with status 2.
    """


def say(line: str) -> None:
    """Print a line on stderr in one write: of several processes, mpirun mixes what comes in pieces."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def exit_cleanly(main: Callable[[], int], leave: Callable[[int], NoReturn] = sys.exit) -> NoReturn:
    """Run `main` and end the process with the status that it returns, without tracebacks for users' mistakes.

    An `InputError` becomes one `error: ...` line on stderr and status 2; Ctrl-C becomes status 130.
    A program of several processes gives `jaxnet.cluster.leave.leave` as `leave`: a process that
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
