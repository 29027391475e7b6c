"""Run a job on the emulated hosts of a lab, so that nothing of the lab can outlast it."""

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
from jaxnet.cluster.job_token import TOKEN, new_token
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.operations.lab import kernel, network
from jaxnet.operations.launchers.job import find_command
from jaxnet.operations.launchers.local import rank_environment
from jaxnet.operations.supervise import (
    FORWARDED,
    Rank,
    announce,
    ending,
    exit_status,
    signals_to,
    supervise,
)

_MOST_HOSTS = 64
_PORT = 12321  # each lab has its own network, so no other program can hold this port


@dataclass(frozen=True)
class Lab:
    """Hosts joined by links of `rate` bits a second, and what runs on each.

    Attributes:
        hosts: how many.
        rate: of each link; None: as fast as the machine allows.
        processes_per_host: process i of the job runs on host i // processes_per_host.
        devices_per_process: CPU devices that each process emulates; None: JAX's default.
        cpus_per_host: CPU cores that each host has for itself; None: all hosts share all cores.
    """

    hosts: int
    rate: int | None = None
    processes_per_host: int = 1
    devices_per_process: int | None = None
    cpus_per_host: int | None = None


def run_lab(command: Sequence[str], lab: Lab) -> int:
    """Run `command` as every process of `lab` and return the job's exit status, see `supervise`.

    Raises:
        InputError: a lab is impossible here: not Linux, not root, programs missing, too many hosts.
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
    """The cores of each host; an empty list means all cores.

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


def _run(command: Sequence[str], lab: Lab, cores: Sequence[Sequence[int]]) -> int:
    with kernel_refusals():
        networks = network.build(cores, lab.rate)
        network.name_hosts(lab.hosts)
    count, token = lab.hosts * lab.processes_per_host, new_token()
    return supervise([rank_on_host(index, command, lab, networks, cores, token) for index in range(count)])


def rank_on_host(
    index: int, command: Sequence[str], lab: Lab, networks: Sequence[str], cores: Sequence[Sequence[int]], token: str
) -> Rank:
    """Process `index` of `lab`, whose job has this token. `networks` holds each host's namespace, `cores` its cores."""
    host = index // lab.processes_per_host
    on_host = kernel.on_host(network.host_name(host), networks[host], ",".join(map(str, cores[host])), command)
    count = lab.hosts * lab.processes_per_host
    own = rank_environment(os.environ, index, count, _PORT, lab.devices_per_process)
    own.pop(INTERFACE, None)  # it names an interface of the machine, which no lab host has
    return Rank(index, on_host, own | {COORDINATOR: f"{network.host_address(0)}:{_PORT}", TOKEN: token})


# ---- Isolation ------------------------------------------------------------------------------------------
#
# The lab runs in a child process that is the first one of a new process namespace. When that process ends, however it
# ends, the kernel kills every process in its namespace and removes the networks, names and mounts that only they
# used. It also ends when this process does. So no clean-up code exists, `kill -9` leaves nothing behind, and a later
# start has nothing to find.


def run_isolated(main: Callable[[], int]) -> int:
    """Run `main` in its own process and mount namespaces; return its exit status as a shell reports it.

    SIGINT and SIGTERM are passed on to the process that runs `main`. Until `main` handles them, they end it. Call
    this while the process has one thread, because it forks.

    Raises:
        InputError: the kernel refuses the namespaces.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # The child holds `alive`; the kernel closes our end with this process, which makes `alive` readable.
    alive, ours = os.pipe()
    # A signal between the fork and `signals_to` would end this process alone: block signals until both are ready.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
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
    returncode = os.waitstatus_to_exitcode(status)
    if returncode < 0:
        announce(f"the lab's first process {ending(returncode)}, and all others with it")
    return exit_status(returncode)


def _fork_first_process() -> int:
    """Fork into a new process namespace. Later children of this process stay in the old one."""
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
    """The life of the namespace's first process."""
    try:
        kernel.die_with_parent()
        # The parent may have died before the line above: then nobody sends SIGKILL, but the pipe is readable.
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)
        os.setsid()  # Ctrl-C then reaches only the parent, which passes it on
        for number in FORWARDED:
            # The kernel drops signals that a namespace's first process does not handle, so handle them.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        exit_cleanly(lambda: _with_own_mounts(main), _leave)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _with_own_mounts(main: Callable[[], int]) -> int:
    with kernel_refusals():
        kernel.unshare(kernel.NEW_MOUNTS)
        kernel.keep_mounts_private()
        kernel.mount_new("proc", "/proc")  # the old one shows these processes under other numbers
    return main()


def _end(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


def _leave(status: int) -> NoReturn:
    # Not sys.exit: the exit hooks belong to the parent, from which this process was forked.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _pass_on(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)
        os.kill(process, signal.SIGCONT)  # a stopped process would not act on the other


@contextmanager
def kernel_refusals() -> Iterator[None]:
    """Turn refused calls of `jaxnet.operations.lab.kernel` into InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the kernel refuses a lab its own namespaces ({error.filename}: {error.strerror}); run it as root,"
            " as with sudo; a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
        ) from None
