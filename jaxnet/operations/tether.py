"""No process outlives its launcher, however the launcher ends: run as a script, by path.

Two ties, because a launcher that is killed with SIGKILL can do nothing itself:

- `tether.py rank PIPE LAUNCHER COMMAND...` becomes COMMAND after asking the kernel for SIGKILL when the
  launcher dies (Linux's PR_SET_PDEATHSIG, which survives exec). This reaches COMMAND, not what it starts.
- `tether.py keep` reads from its stdin the process groups that live, and kills them all when the other
  ends of that pipe, which the launcher holds, are closed. This reaches what COMMAND started too.

A rank writes its own number into the pipe before it becomes COMMAND, while it still holds that end, so
there is no moment at which it runs unknown. It is a script that imports nothing of ours because it is
started once for every rank, by `python -I -S`, in about 20 ms; and a process of its own, not code
between fork and exec, because that is unsafe where the launcher has threads.
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
        sys.exit(1)  # it died before the kernel was asked
    os.write(pipe, f"{os.getpid()}\n".encode())
    os.set_inheritable(pipe, False)
    # Python ignores these two, and exec would hand that down to programs that rely on them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: cannot run {command[0]}: {error.strerror}")


def keep() -> None:
    """Kill the process groups named on stdin, less those taken back as `-GROUP`, when stdin ends."""
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
