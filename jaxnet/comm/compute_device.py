"""The device on which a process computes the pieces of a step: on one core, by threads that give way to communication.

Where a process has one core, a message waits for it: until Gloo has seen what came in, and until somebody sends on.
Between two hosts of a core each, beside products of matrices, 4 MiB take 40 ms instead of the 35 of the wire, and 4
bytes 8 ms instead of 0.2 (docs/design/giving_way.md).

XLA's threads compute and communicate alike, so they cannot be told apart. Those of a second PJRT client of the process
can: here it has threads that the kernel interrupts as soon as another has something to do (SCHED_IDLE).

Neither client knows of the other. Arrays pass from one to the other without a copy, but not before they are there: who
passes one on waits for it.
"""

import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxlib import xla_client

from jaxnet.comm.mesh import own_device

_TRIAL_SECONDS = 0.05


def compute_device(mesh: Mesh) -> jax.Device:
    """Where this process computes pieces: a CPU that has one core, on a device of a client apart; else its own device.

    Raises:
        ValueError: this process has several devices on the mesh, or none.
    """
    device = own_device(mesh)
    apart = _device_apart(device.process_index) if device.platform == "cpu" and _one_core() else None
    return device if apart is None else apart


def _one_core() -> bool:
    """Whether all threads of this process share a core, by rules that nobody has changed."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) == 1 and os.sched_getscheduler(0) == os.SCHED_OTHER


@functools.cache
def _device_apart(process: int) -> jax.Device | None:
    """A device whose threads give way; None: another program has the core, and would leave them nothing.

    It is for good: what this process has compiled is for one device.
    """
    # With the number of the process it has that of its device on the mesh, by which traces tell devices apart.
    # Threads inherit how they are scheduled. A thread that gives way may not take that back, so this one ends.
    with ThreadPoolExecutor(1, initializer=_give_way) as thread:
        if not thread.submit(_gets_the_core).result():
            return None
        client: Any = thread.submit(xla_client.make_cpu_client, node_id=process, num_devices=1).result()
    device: jax.Device = client.local_devices()[0]
    return device


def _give_way() -> None:
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _gets_the_core() -> bool:
    """Whether this process, of which this thread gives way, gets nearly all of its core."""
    begun, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < _TRIAL_SECONDS:
        pass
    return time.process_time() - used > 0.75 * (time.perf_counter() - begun)


def lent(array: jax.Array, device: jax.Device) -> jax.Array:
    """An array of this process for `device`, without a copy; waits until it is there.

    The array may be donated when all that reads the result has been computed, and not before: JAX does not know of it.
    """
    if device in array.devices():
        return array
    bytes_of = np.asarray(_Bytes(jax.block_until_ready(array)))
    return jax.device_put(bytes_of.view(array.dtype).reshape(array.shape), device)


class _Bytes:
    """An array's memory, as NumPy takes it; keeps the array. `np.asarray(array)` would rule out that it is donated."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array
        memory = (array.unsafe_buffer_pointer(), True)
        self.__array_interface__ = {"version": 3, "data": memory, "shape": (array.nbytes,), "typestr": "|u1"}


def handed_over(array: jax.Array, device: jax.Device) -> jax.Array:
    """An array of this process on `device`, without a copy; waits until it is there. The array must not be donated."""
    if device in array.devices():
        return array
    return jax.device_put(np.asarray(jax.block_until_ready(array)), device)
