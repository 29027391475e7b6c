"""Start a process of a run: find its place, check it, and only then let JAX or MPI join the processes."""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NoReturn

import jax
from jax._src import distributed, xla_bridge
from jax.extend.backend import register_backend_factory
from jaxlib import _jax

from jaxnet.cluster import coordination, mpi
from jaxnet.cluster.addresses import check_interface, listening_address
from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX, INTERFACE, Place, find_place, heartbeat_seconds
from jaxnet.cluster.job_token import token_in
from jaxnet.cluster.mpi import ControlChannel
from jaxnet.cluster.rendezvous import meet
from jaxnet.cluster.tls import check_credentials, credentials_in, initialize_options
from jaxnet.errors import InputError, one_line


@dataclass(frozen=True)
class Cluster:
    """The processes of this run, as one of them sees them.

    Attributes:
        process_index: the number of this one.
        process_count: how many there are.
        detected_by: what described them, see `detect`; `mpi` where MPI joins them.
        coordinator: where process 0 is reached, if known.
        address: where this process's CPU collectives listen; None for a single process, where `interface` says it,
            and where JAX found the processes by itself.
        interface: the network interface on which they listen, if one was named.
        mpi: the control channel, where MPI joins the processes instead of JAX; else None.
    """

    process_index: int = 0
    process_count: int = 1
    detected_by: str = "single"
    coordinator: str | None = None
    address: str | None = None
    interface: str | None = None
    mpi: ControlChannel | None = None


_started: Cluster | None = None


def start(timeout_seconds: float = 300.0) -> Cluster:
    """Join the processes that the environment describes. Call it before anything uses a device.

    A single process does nothing. With several, it returns when all have come. A second call returns the result of the
    first.

    Raises:
        InputError: what stands in the way, in one line, where JAX would abort or hang.

    >>> start().process_count
    1
    """
    global _started
    if _started is None:
        place = find_place(os.environ)
        _started = Cluster(detected_by=place.detected_by) if place.process_count == 1 else _join(place, timeout_seconds)
    return _started


def joined() -> Cluster | None:
    """What `start` has returned; None before that."""
    return _started


def start_by_mpi(world: Callable[[], Any]) -> Cluster:
    """Join the processes of mpirun without jax.distributed: each process's JAX knows only its own devices.

    `world` returns the communicator of all processes.

    Raises:
        InputError: `world` raises ImportError or RuntimeError, or a variable is set that would have JAX join them.
    """
    global _started
    if _started is None:
        for name in (COORDINATOR, COUNT, INDEX):
            if os.environ.get(name):
                raise InputError(
                    f"{name}={os.environ[name]} is for processes that JAX joins, and with transport=mpi mpirun joins"
                    " them: unset it, or leave transport=xla"
                )
        share_one_core()
        try:
            control = mpi.join(world())
        except (ImportError, RuntimeError) as error:
            raise InputError(f"transport=mpi: {error}") from None
        leave_on_uncaught_errors()
        _started = Cluster(control.index, control.count, "mpi", mpi=control)
    return _started


def _join(place: Place, timeout_seconds: float) -> Cluster:
    # 1. Check what JAX would abort on, or hang over.
    if jax.distributed.is_initialized():
        raise InputError("jax.distributed is initialised already; leave that call out, jaxnet makes it")
    if coordination.devices_in_use():
        raise InputError(
            "JAX has already used its devices in this process; start the processes before that"
            " (in a notebook: restart the kernel)"
        )
    if place.interface:
        check_interface(place.interface, INTERFACE)
    if place.coordinator and not place.bind:
        place = replace(place, bind=listening_address(place.coordinator, place.interface))
    tls = credentials_in(os.environ)
    options = {**initialize_options(tls), "heartbeat_timeout_seconds": heartbeat_seconds(os.environ)}
    if tls:
        check_credentials(tls, place.coordinator.host if place.coordinator and place.process_index == 0 else None)
    # 2. Meet the others, then let JAX join all.
    share_one_core()
    address = _meet(place, timeout_seconds)
    _initialize(place, timeout_seconds, options)
    # 3. Set up collectives and exit, before any device is made.
    make_gloo(hostname=None if place.interface else address, interface=place.interface)
    leave_on_uncaught_errors()
    return Cluster(
        process_index=jax.process_index() if place.process_index is None else place.process_index,
        process_count=jax.process_count() if place.process_count is None else place.process_count,
        detected_by=place.detected_by,
        coordinator=str(place.coordinator) if place.coordinator else None,
        address=None if place.interface else address,
        interface=place.interface,
    )


def _meet(place: Place, timeout_seconds: float) -> str | None:
    if place.coordinator is None or place.bind is None or place.process_index is None or place.process_count is None:
        return None  # only JAX's own detection knows where process 0 is
    token = token_in(os.environ)
    return meet(place.coordinator, place.bind, place.process_index, place.process_count, timeout_seconds, token)


_PREEMPTION = "jax_enable_preemption_service"  # it would take SIGTERM, which is for `LastStep`


def _initialize(place: Place, timeout_seconds: float, options: dict[str, Any]) -> None:
    """Let JAX join the processes. Limits not given here stay JAX's own, such as 300 s for the last to finish."""
    if hasattr(jax.config, _PREEMPTION):
        jax.config.update(_PREEMPTION, False)
    if place.coordinator is None:
        reason = None
        try:
            jax.distributed.initialize(initialization_timeout=int(timeout_seconds), **options)
        except (RuntimeError, ValueError) as error:
            reason = one_line(error)
        else:
            found = distributed.global_state.num_processes  # by mpi4py, if that is another MPI than mpirun's: 1
            if place.process_count not in (None, found):
                reason = f"it found {found} of {place.process_count}"
        if reason:
            raise InputError(
                f"JAX could not join the processes that {place.detected_by} describes ({reason});"
                f" set {COORDINATOR}, {COUNT} and {INDEX} in each instead"
            )
        return
    go_around(os.environ, place.coordinator.host)
    jax.distributed.initialize(
        coordinator_address=str(place.coordinator),
        num_processes=place.process_count,
        process_id=place.process_index,
        coordinator_bind_address=str(place.bind),
        initialization_timeout=max(int(timeout_seconds), 1),
        local_device_ids=None if place.local_device is None else [place.local_device],
        # Under Slurm, JAX still picks this task's own device. Elsewhere `local_device` says it, or all are taken.
        cluster_detection_method=None if place.detected_by == "slurm" else "deactivate",
        **options,
    )


# ---- Proxies -------------------------------------------------------------------------------------------
#
# gRPC obeys `http_proxy` and its like for JAX's coordinator too. `jax.distributed.initialize` then asks the proxy for
# the coordinator, even on 127.0.0.1, waits until its time is up and ends the process with SIGABRT.

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC obeys the first that is set
_EXEMPT = ("no_grpc_proxy", "no_proxy")  # the first that is set lists the exceptions


def proxy_between(environ: Mapping[str, str], host: str) -> str | None:
    """The variable by which gRPC would call `host` through a proxy, or None.

    >>> proxy_between({"https_proxy": "http://proxy:3128"}, "node1")
    'https_proxy'
    >>> proxy_between({"https_proxy": "http://proxy:3128", "no_proxy": "localhost,node1"}, "node1")
    """
    exempt = [part.strip() for part in _exempt(environ).split(",")]
    if any(suffix and host.endswith(suffix) for suffix in exempt):
        return None
    return next((name for name in _PROXIES if environ.get(name)), None)


def go_around(environ: MutableMapping[str, str], host: str) -> None:
    """Let gRPC, and nothing else, call `host` directly from now on.

    >>> environ = {"https_proxy": "http://proxy:3128", "no_proxy": "localhost"}
    >>> go_around(environ, "node1")
    >>> environ["no_grpc_proxy"], environ["no_proxy"]
    ('localhost,node1', 'localhost')
    """
    if proxy_between(environ, host):
        environ["no_grpc_proxy"] = ",".join(filter(None, (_exempt(environ), host)))


def _exempt(environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in _EXEMPT if environ.get(name)), "")


# ---- Gloo ----------------------------------------------------------------------------------------------
#
# Two things of Gloo, which carries collectives of the CPU, are set as it is made, and JAX has no option for either. So
# the CPU backend is registered again, made as JAX makes it except for them. The functions for it are private in JAX
# 0.10 to 0.12; only this file uses them.
#
# 1. Where it listens. By default that is the address that the host's own name resolves to: 127.0.1.1 on a stock
#    Debian, and in containers often one that others cannot reach, so that their connections are refused.
# 2. How its thread is scheduled. Where a thread that sends is interrupted by Gloo's own, and holds the lock that this
#    one wants, Gloo's asks for the lock without a pause until the kernel gives the core back: 4 ms for a message of
#    1 KB where a process has one core, see docs/design/gloo.md. As a batch thread, Gloo's interrupts none.


def make_gloo(*, hostname: str | None = None, interface: str | None = None) -> None:
    """Let CPU collectives of this process listen on an address or interface, by a thread that interrupts no other.

    Call it before any device is used. Does nothing if JAX is set to an implementation other than Gloo, such as MPI.
    """
    if getattr(jax.config, "jax_cpu_collectives_implementation", "gloo") != "gloo":
        return
    if not (hasattr(xla_bridge, "make_cpu_client") and hasattr(_jax, "make_gloo_tcp_collectives")):
        if not (interface or hostname):
            return
        raise InputError(
            f"JAX {jax.__version__} offers no way to choose where its CPU collectives listen"
            f" ({interface or hostname}); use a version from 0.10.2 to 0.12"
        )

    def make_client() -> Any:
        with _patient_threads():
            collectives = _jax.make_gloo_tcp_collectives(
                distributed_client=distributed.global_state.client, hostname=hostname, interface=interface
            )
        return xla_bridge.make_cpu_client(collectives=collectives)

    register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


@contextmanager
def _patient_threads() -> Iterator[None]:
    """Threads that start within wait for a core until who has it rests or its time is up."""
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # whoever started this process has chosen
        return
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


# ---- Where a process has one core ----------------------------------------------------------------------

_THREADS = ("PJRT_NPROC", "NPROC")  # XLA obeys either; the second is an older name
_ARENA_MAX, _ARENAS = -8, 1024  # as glibc's malloc.h numbers it; more than there are threads


def share_one_core() -> None:
    """Prepare a process that has one core. Call it before any device is used, and before threads are made.

    - XLA:CPU starts as many threads as the process has cores, and a Gloo collective holds one of them until all hosts
      have answered. None would be left, and nothing would overlap: so it starts one more.
    - glibc has 8 arenas of memory a core, each with a lock. A thread that gives way (`jaxnet.comm.compute_device`) can
      lose the core while it holds one. If a thread that sends needs the same one, it waits with the lock of its
      connection, for which Gloo's thread turns in a circle, and leaves who gives way a few thousandths of the core:
      such steps took 1 to 2 s instead of 0.3. So each thread has an arena (docs/design/giving_way.md).
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    if cores != 1:
        return
    if not any(name in os.environ for name in _THREADS):
        os.environ[_THREADS[0]] = "2"
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


# ---- Leaving -------------------------------------------------------------------------------------------
#
# JAX's exit hook waits up to five minutes for all processes to end. A process that failed alone would wait there for
# others that wait for it in a collective, and no launcher could see that it failed.

_TOGETHER_SECONDS = 2.0
_AFTER_ANOTHER_SECONDS = 0.5


def leave(status: int) -> NoReturn:
    """End this process with `status`. After a failure, do not wait for processes that continue.

    Where all fail together, as with a mistake in the config, they end in good order: process 0, which serves the
    others, must not vanish before they have said what is wrong.
    """
    if status != 0 and jax.distributed.is_initialized() and not _all_leave():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if status != 0 and (control := mpi.joined()):
        control.leave(status)
    sys.exit(status)


def leave_on_uncaught_errors() -> None:
    """From now on, let an uncaught exception end this process by `leave`, after its traceback."""
    show = sys.excepthook

    def show_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        leave(1)

    sys.excepthook = show_and_leave


def _all_leave() -> bool:
    called = time.monotonic()
    try:
        if coordination.wait_for_all("jaxnet/leave", _TOGETHER_SECONDS):
            return True
    except jax.errors.JaxRuntimeError:
        pass  # the service is gone already
    # An error at once means that another process failed before, and this one because of it. A launcher names the first
    # that ends, so do not let this one overtake it.
    time.sleep(max(called + _AFTER_ANOTHER_SECONDS - time.monotonic(), 0))
    return False
