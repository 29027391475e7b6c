"""Know that SIGTERM has come even while the main thread waits inside JAX, where no handler of Python's can run.

A handler of Python's runs when the main thread is back in Python, which may be never. But Python's own handler in C
writes the number of the signal into a pipe at once, and a thread can read that.
"""

import os
import signal
import threading
from contextlib import suppress


class Told:
    """Whether SIGTERM has come; False for ever unless `notice` was called.

    >>> Told().is_set()
    False
    """

    def __init__(self) -> None:
        self._came = False

    def is_set(self) -> bool:
        """Whether it has come."""
        return self._came

    def notice(self) -> None:
        """From now on SIGTERM does nothing but to be noticed.

        Nothing changes outside the main thread, or where the pipe of signals belongs to another, as to an event loop.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        if (other := signal.set_wakeup_fd(writing, warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(other)
            os.close(reading)
            os.close(writing)
            return
        signal.signal(signal.SIGTERM, self._on_signal)  # this, too: somebody may take the pipe away later
        forks = _Forks()
        os.register_at_fork(before=forks.hold, after_in_parent=forks.let_go, after_in_child=forks.forget)
        threading.Thread(target=self._listen, args=(reading,), name="signals", daemon=True).start()

    def _listen(self, reading: int) -> None:
        while numbers := os.read(reading, 64):
            if signal.SIGTERM in numbers:
                self._came = True

    def _on_signal(self, *_: object) -> None:
        self._came = True


class _Forks(threading.local):
    """Keeps a forked child from taking part: its signals are not this process's, whose pipe it shares."""

    def hold(self) -> None:
        """Before a fork: let SIGTERM wait until the child is its own."""
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def let_go(self) -> None:
        """After it: as before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def forget(self) -> None:
        """In the child, where SIGTERM does what it does in any program."""
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.let_go()


told = Told()
"""Of this process."""
