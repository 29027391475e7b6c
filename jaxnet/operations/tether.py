"""Tie processes to their launcher, so that none outlives it, however it ends.

A launcher killed by SIGKILL can do nothing itself, so there are two ties:

- `tether.py rank PIPE LAUNCHER COMMAND...` asks the kernel for SIGKILL when the launcher dies (Linux's
  PR_SET_PDEATHSIG, which survives exec), then turns into COMMAND. This reaches COMMAND, not what COMMAND starts.
- `tether.py keep` reads the numbers of the living process groups from its stdin, and kills them all when the other end
  of that pipe, which the launcher holds, is closed. This reaches what COMMAND started too.

A rank writes its own number into the pipe before it turns into COMMAND, and holds that end until then. So it never
runs without the keeper knowing it. When the keeper itself dies, the launcher starts another and tells it all numbers.

This is a file of its own because each rank starts through it, by path, with `python -I -S` (about 20 ms): it may
import the standard library only. It is a process and not code between fork and exec (`preexec_fn`), because that is
unsafe in a launcher with threads.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def become(pipe: int, launcher: int, command: list[str]) -> None:
    """Tie this process to `launcher`, then run `command` in it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        sys.exit(1)  # the launcher died before the call above, so no SIGKILL will come
    with suppress(BrokenPipeError):  # the keeper has just died: the launcher tells the next one
        os.write(pipe, f"{os.getpid()}\n".encode())
    os.set_inheritable(pipe, False)
    # Python ignores these signals, and exec would pass that on to programs that rely on them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: cannot run {command[0]}: {error.strerror}")


def keep() -> None:
    """Kill the process groups named on stdin when stdin ends, except those taken back as `-GROUP`."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        become(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        keep()
