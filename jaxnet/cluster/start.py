"""Start-up: find this process's place, check it, and only then let JAX join the processes."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxnet.cluster import coordination, gloo, mpi
from jaxnet.cluster.address import check_interface
from jaxnet.cluster.environment import COORDINATOR, COUNT, INDEX, INTERFACE, Place, find_place, heartbeat_seconds
from jaxnet.cluster.leave import leave_on_uncaught_errors
from jaxnet.cluster.listening import listening_address
from jaxnet.cluster.proxies import go_around
from jaxnet.cluster.rendezvous import meet
from jaxnet.cluster.threads import spare_thread
from jaxnet.cluster.tls import check_credentials, credentials_in, initialize_options
from jaxnet.errors import InputError, one_line


@dataclass(frozen=True)
class Cluster:
    """The processes of this run, as one of them sees them.

    `address` or `interface` is where this process's CPU collectives listen; both are None for a single
    process, and where JAX found the processes by itself and no interface was named. `ranks` are those of MPI,
    which then joins the processes in the place of JAX; else None.
    """

    process_index: int = 0
    process_count: int = 1
    detected_by: str = "single"
    coordinator: str | None = None
    address: str | None = None
    interface: str | None = None
    ranks: mpi.Ranks | None = None


_started: Cluster | None = None


def start(timeout_seconds: float = 300.0) -> Cluster:
    """Join the processes that the environment describes; call it before anything uses a device.

    A single process does nothing. With several, it returns when all have come, within `timeout_seconds`;
    what stands in the way is an InputError of one line, in place of JAX's abort or silence. A second
    call returns the result of the first.

    >>> start().process_count
    1
    """
    global _started
    if _started is None:
        place = find_place(os.environ)
        _started = Cluster(detected_by=place.detected_by) if place.process_count == 1 else _join(place, timeout_seconds)
    return _started


def joined() -> Cluster | None:
    """What `start` has given; None before it and as long as it waits."""
    return _started


def start_by_mpi(world: Callable[[], Any]) -> Cluster:
    """Join the ranks of mpirun, without jax.distributed: the devices of each process are all that its JAX knows of.

    `world` gives the communicator of all ranks; it may raise ImportError and RuntimeError, which become InputErrors,
    as does any variable that would have JAX join the processes.
    """
    global _started
    if _started is None:
        for name in (COORDINATOR, COUNT, INDEX):
            if os.environ.get(name):
                raise InputError(
                    f"{name}={os.environ[name]} is for processes that JAX joins, and with transport=mpi mpirun joins"
                    " them: unset it, or leave transport=xla"
                )
        try:
            ranks = mpi.join(world())
        except (ImportError, RuntimeError) as error:
            raise InputError(f"transport=mpi: {error}") from None
        spare_thread()
        leave_on_uncaught_errors()
        _started = Cluster(ranks.index, ranks.count, "mpi", ranks=ranks)
    return _started


def _join(place: Place, timeout_seconds: float) -> Cluster:
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
    options = initialize_options(tls)
    if tls:
        check_credentials(tls, place.coordinator.host if place.coordinator and place.process_index == 0 else None)
    address = _meet(place, timeout_seconds)
    _initialize(place, timeout_seconds, options)
    if place.interface:
        gloo.listen_on(interface=place.interface)
    elif address:
        gloo.listen_on(hostname=address)
    spare_thread()
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
    return meet(place.coordinator, place.bind, place.process_index, place.process_count, timeout_seconds)


def _initialize(place: Place, timeout_seconds: float, options: dict[str, Any]) -> None:
    """Other limits stay JAX's own: 300 s for the last to finish at the end."""
    options = {**options, "heartbeat_timeout_seconds": heartbeat_seconds(os.environ)}
    if place.coordinator is None:
        try:
            jax.distributed.initialize(initialization_timeout=int(timeout_seconds), **options)
        except (RuntimeError, ValueError) as error:
            reason = one_line(error)
            raise InputError(
                f"JAX could not join the processes that {place.detected_by} describes ({reason});"
                f" set {COORDINATOR}, {COUNT} and {INDEX} in each instead"
            ) from None
        return
    go_around(os.environ, place.coordinator.host)
    jax.distributed.initialize(
        coordinator_address=str(place.coordinator),
        num_processes=place.process_count,
        process_id=place.process_index,
        coordinator_bind_address=str(place.bind),
        initialization_timeout=max(int(timeout_seconds), 1),
        local_device_ids=None if place.local_device is None else [place.local_device],
        # Under Slurm, JAX still picks this task's own devices; the others say it, or mean all that are visible.
        cluster_detection_method=None if place.detected_by == "slurm" else "deactivate",
        **options,
    )
