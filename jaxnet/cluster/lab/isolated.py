"""A function run where nothing that it makes can outlast it, or this process.

It runs in a process of its own, the first of a new process namespace: when that one ends, however it ends,
the kernel kills every process started in it and takes apart the networks, names and mounts that only those
used. It ends when this process does. So there is nothing to clean up, after `kill -9` too, and nothing
that a later start could find.
"""

import functools
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from jaxnet.cluster.lab import kernel
from jaxnet.cluster.supervise import FORWARDED, exit_status, signals_to
from jaxnet.errors import InputError, exit_cleanly


def run_isolated(main: Callable[[], int]) -> int:
    """Run `main` among processes and mounts of its own; the result is its exit status, as a shell reports it.

    SIGINT and SIGTERM are passed on to the process that runs `main`; before `main` handles them, they end it.
    Call this while the process has one thread: it forks. Raises InputError where the kernel refuses.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    alive, ours = os.pipe()  # closed by our end alone, whatever that is
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is somebody to pass them on to
    try:
        child = _fork_first_process()
        if child == 0:
            os.close(ours)
            _live(main, alive, mask)
        with signals_to(functools.partial(_pass_on, child)):
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _, status = os.waitpid(child, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(alive)
        os.close(ours)
    return exit_status(os.waitstatus_to_exitcode(status))


def _fork_first_process() -> int:
    """As `os.fork`, into a new process namespace; children to come of this process are again its like."""
    before = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        with kernel_refusals():
            kernel.unshare(kernel.NEW_PROCESSES)
        child = os.fork()
        if child != 0:
            kernel.join(before, kernel.NEW_PROCESSES)
    finally:
        os.close(before)
    return child


def _live(main: Callable[[], int], alive: int, mask: set[int]) -> NoReturn:
    """The life of the first process: everything else in its namespace ends with it."""
    try:
        kernel.die_with_parent()
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)  # the parent died before the kernel was asked
        os.setsid()  # Ctrl-C reaches the parent alone, which passes it on
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        exit_cleanly(lambda: _among_own_mounts(main), _leave)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _among_own_mounts(main: Callable[[], int]) -> int:
    with kernel_refusals():
        kernel.unshare(kernel.NEW_MOUNTS)
        kernel.keep_mounts_private()
        kernel.mount_new("proc", "/proc")  # the old one knows these processes by other numbers
    return main()


def _end(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _pass_on(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


@contextmanager
def kernel_refusals() -> Iterator[None]:
    """Calls of `jaxnet.cluster.lab.kernel` that the kernel refuses become InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the kernel refuses a lab its own namespaces ({error.filename}: {error.strerror}); run it as root,"
            " as with sudo; a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
        ) from None
