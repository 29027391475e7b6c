"""A job on the hosts of the lab."""

import functools
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from jaxnet.cluster.environment import COORDINATOR, INTERFACE
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.operations.lab import network
from jaxnet.operations.lab import network as kernel
from jaxnet.operations.lab.network import on_host
from jaxnet.operations.local import find_command, rank_environment
from jaxnet.operations.supervise import FORWARDED, Rank, exit_status, signals_to, supervise

# ---- A function run where nothing that it makes can outlast it, or this process -----------------------
#
# It runs in a process of its own, the first of a new process namespace: when that one ends, however it ends,
# the kernel kills every process started in it and takes apart the networks, names and mounts that only those
# used. It ends when this process does. So there is nothing to clean up, after `kill -9` too, and nothing
# that a later start could find.


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
    """Calls of `jaxnet.operations.lab.network` that the kernel refuses become InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the kernel refuses a lab its own namespaces ({error.filename}: {error.strerror}); run it as root,"
            " as with sudo; a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
        ) from None


_MOST_HOSTS = 64
_PORT = 12321  # every lab has its own network: nothing else can have taken it


@dataclass(frozen=True)
class Lab:
    """Hosts joined by links of `rate` bits a second, or as fast as the machine goes; what runs on each.

    Process i of all runs on host i // processes_per_host. With `cpus_per_host`, each host has that many
    CPU cores for itself; else they share all.
    """

    hosts: int
    rate: int | None = None
    processes_per_host: int = 1
    devices_per_process: int | None = None
    cpus_per_host: int | None = None


def run_lab(command: Sequence[str], lab: Lab) -> int:
    """Run `command` as every process of `lab` and return the job's exit status, see `supervise`.

    Raises InputError where there can be no lab: not Linux, not root, programs missing, too many hosts.
    """
    if sys.platform != "linux":
        raise InputError(f"a lab is made of Linux namespaces, which {sys.platform} does not have; run it on Linux")
    if not 1 <= lab.hosts <= _MOST_HOSTS:
        raise InputError(f"--hosts {lab.hosts}: wanted 1 to {_MOST_HOSTS}")
    whole = find_command(command)
    cores = share_cores(sorted(os.sched_getaffinity(0)), lab.hosts, lab.cpus_per_host)
    network.check_tools()
    return run_isolated(lambda: _run(whole, lab, cores))


def share_cores(cores: Sequence[int], hosts: int, cpus_per_host: int | None) -> list[list[int]]:
    """The cores of each host; none listed means all.

    >>> share_cores([0, 1, 4, 5], 2, 2), share_cores([0, 1], 2, None)
    ([[0, 1], [4, 5]], [[], []])
    """
    if cpus_per_host is None:
        return [[] for _ in range(hosts)]
    if hosts * cpus_per_host > len(cores):
        raise InputError(
            f"--cpus-per-host {cpus_per_host} for {hosts} hosts takes {hosts * cpus_per_host} CPU cores,"
            f" and there are {len(cores)}; give fewer, or leave it out to share them"
        )
    return [list(cores[host * cpus_per_host :][:cpus_per_host]) for host in range(hosts)]


def rank_on_host(
    index: int, command: Sequence[str], lab: Lab, networks: Sequence[str], cores: Sequence[Sequence[int]]
) -> Rank:
    """Process `index` of `lab`, on its host: the one of `networks` and of `cores` that is its own."""
    host = index // lab.processes_per_host
    there = on_host(network.host_name(host), networks[host], ",".join(map(str, cores[host])), command)
    count = lab.hosts * lab.processes_per_host
    own = rank_environment(os.environ, index, count, _PORT, lab.devices_per_process)
    own.pop(INTERFACE, None)  # one of the machine's own, which no host of the lab has
    return Rank(index, there, own | {COORDINATOR: f"{network.host_address(0)}:{_PORT}"})


def _run(command: Sequence[str], lab: Lab, cores: Sequence[Sequence[int]]) -> int:
    with kernel_refusals():
        networks = network.build(lab.hosts, lab.rate)
        network.name_hosts(lab.hosts)
    count = lab.hosts * lab.processes_per_host
    return supervise([rank_on_host(index, command, lab, networks, cores) for index in range(count)])
