"""Hold the process that kills all ranks when their launcher dies; when that process dies first, start another.

See `jaxnet.operations.tether` for what it does.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TETHER = [sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py"))]
"""How to run `tether.py`, before its own arguments."""

_MOST_REPLACED = 3  # of one attempt: what kills them again and again would kill the next one too


class Keeper:
    """The keeper of one set of process groups. One thread alone calls its methods.

    Args:
        ended: called from a thread of its own when a keeper's process has ended, with that process's return code.

    Attributes:
        pipe: where a process writes its own number before it runs.
    """

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._groups: set[int] = set()
        self._replaced = 0
        self._start()

    def add(self, group: int) -> None:
        """Keep a process group, which has written its number, or will."""
        self._groups.add(group)

    def forget(self, group: int) -> None:
        """Take a process group back, whose number the kernel may give to a new process."""
        self._groups.discard(group)
        self._tell(-group)

    def replace(self) -> bool:
        """Start another process after one has ended; False if that makes no sense any more, or is impossible."""
        if self._replaced == _MOST_REPLACED:
            return False
        self._replaced += 1
        before = self.pipe
        try:
            self._start()
        except OSError:  # no process or file is left to have
            return False
        os.close(before)
        for group in self._groups:
            self._tell(group)
        return True

    def close(self) -> None:
        """End, when no group is left. The process may be stopped, so it is not asked."""
        self._process.kill()
        self._process.wait()
        os.close(self.pipe)

    def _start(self) -> None:
        # The keeper reads this pipe, and kills all when the writing end closes, however this process ends.
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [*TETHER, "keep"],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self.pipe, self._process = writing, process
        threading.Thread(target=lambda: self._ended(process.wait()), daemon=True).start()

    def _tell(self, number: int) -> None:
        with suppress(BrokenPipeError):  # it has just ended: the next one is told all
            os.write(self.pipe, f"{number}\n".encode())
