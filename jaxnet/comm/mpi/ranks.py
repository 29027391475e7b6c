"""The ranks that mpirun started, as devices of one program see them; mpi4jax is imported here and nowhere else.

mpi4jax orders its calls by a token that each takes from the one before, so all ranks issue them in the order in
which they were traced. Devices of one process run on threads of their own, and their calls interleave as they
like: each device has a communicator of its own, and its own chain of tokens.
"""

import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.algorithms.hops import Hops
from jaxnet.comm.vma import same_along, varying_axes

# Set by launchers that start several processes, MPI's own and others.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JAX_NUM_PROCESSES")
# Types that MPI has no name for travel as the bits they are.
_CARRIERS = {"float16": "uint16", "bfloat16": "uint16"}


class Ranks:
    """A communicator, with one copy of it for each device of this process.

    Attributes:
        rank: this process's place.
        size: number of ranks.
    """

    def __init__(self, communicator: Any = None):
        self._mpi4jax, self._mpi = load()
        world = mpi_world()
        self._communicator = world if communicator is None else communicator
        self._of_device: list[Any] = []
        self.rank: int = self._communicator.rank
        self.size: int = self._communicator.size

    def on_each_device(self, work: Callable[["OneDevice", jax.Array], jax.Array], value: jax.Array) -> jax.Array:
        """`work` on this device's value and its own communicator; the result varies over the axes that `value` does.

        The first call makes the communicators, in which all ranks take part.
        """
        axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
        devices = lax.axis_size(axes)
        self._have_communicators(devices)

        def branch(communicator: Any) -> Callable[[jax.Array], jax.Array]:
            return lambda value: _typed_as(value, work(OneDevice(self, communicator), value))

        branches = [branch(communicator) for communicator in self._of_device[:devices]]
        if devices == 1:
            return branches[0](value)
        return _typed_as(value, lax.switch(lax.axis_index(axes), branches, value))

    def _have_communicators(self, devices: int) -> None:
        if devices > 1:
            if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
                raise RuntimeError(
                    f"{devices} devices of one process call MPI from as many threads, and this MPI does not allow it"
                    " (no MPI_THREAD_MULTIPLE): start one process a device"
                )
            _allow_several_devices()
        while len(self._of_device) < devices:
            self._of_device.append(self._communicator.Clone())

    def sum_by_library(self, communicator: Any, value: jax.Array) -> jax.Array:
        """MPI_Allreduce, by the algorithm that the library chooses."""
        total: jax.Array = self._mpi4jax.allreduce(value, op=self._mpi.SUM, comm=communicator)
        return total

    def exchange(self, communicator: Any, value: jax.Array, to: int | None, source: int | None) -> jax.Array:
        """MPI_Sendrecv: send to one rank while receiving from another; None is nobody."""
        nobody = self._mpi.PROC_NULL
        received: jax.Array = self._mpi4jax.sendrecv(
            value, value, nobody if source is None else source, nobody if to is None else to, comm=communicator
        )
        return received


class OneDevice:
    """What one device can do with the devices at its place in the other ranks."""

    def __init__(self, ranks: Ranks, communicator: Any):
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self._communicator = ranks, communicator

    def total(self, value: jax.Array) -> jax.Array:
        """The sum over the ranks, as the MPI library computes it."""
        return self._ranks.sum_by_library(self._communicator, value)

    def send(self, value: jax.Array, hops: Hops) -> jax.Array | None:
        """What the sender of this rank's hop has as `value`; None on a rank to which none leads.

        Every rank makes the call, those without a hop with nobody at the other end, so that all run the same program.
        """
        to = next((receiver for sender, receiver in hops if sender == self.rank), None)
        source = next((sender for sender, receiver in hops if receiver == self.rank), None)
        carrier = carrier_of(value.dtype)
        bits = value if value.dtype == carrier else lax.bitcast_convert_type(value, carrier)
        received = self._ranks.exchange(self._communicator, bits, to, source)
        if source is None:
            return None
        return received if value.dtype == carrier else lax.bitcast_convert_type(received, value.dtype)


def carrier_of(dtype: Any) -> str:
    """The type as which values of this dtype travel.

    >>> carrier_of("float32"), carrier_of("bfloat16")
    ('float32', 'uint16')
    """
    name = jnp.dtype(dtype).name
    return _CARRIERS.get(name, name)


def load() -> tuple[ModuleType, Any]:
    """mpi4jax and mpi4py.MPI; the first import starts MPI.

    Raises:
        ImportError: one of them is missing, or cannot be loaded.
    """
    try:
        with warnings.catch_warnings():
            # It warns of any JAX newer than itself; the tests tell whether the pair works.
            warnings.filterwarnings("ignore", message=r"\s*The latest supported JAX version", category=UserWarning)
            return importlib.import_module("mpi4jax"), importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"the MPI transport needs mpi4jax, and it cannot be loaded ({reason}): install an MPI library"
            " (Debian: libopenmpi-dev openmpi-bin), then jaxnet[mpi] with 'make install-mpi'"
        ) from None


def mpi_world() -> Any:
    """All ranks of mpirun, as an `mpi4py.MPI.Intracomm`.

    Raises:
        ImportError: mpi4jax is missing.
        RuntimeError: these processes were not started by mpirun, or jax.distributed runs as well.
    """
    _, mpi = load()
    if mpi.COMM_WORLD.size == 1:
        refuse_other_launchers(os.environ)
    if jax.distributed.is_initialized():
        raise RuntimeError(
            "jax.distributed is running, and MPI too: with MPI each process has a mesh of its own devices alone;"
            " leave jax.distributed.initialize() out, or sum with all_reduce(...) instead"
        )
    return mpi.COMM_WORLD


def refuse_other_launchers(environ: Mapping[str, str]) -> None:
    """Raise where MPI sees one rank and a launcher speaks of several: each would train alone, in silence."""
    for name in _COUNTS:
        if environ.get(name, "1") not in ("", "1"):
            raise RuntimeError(
                f"MPI counts one rank here, but {name}={environ[name]} says that this is one of several processes:"
                " start them with mpirun, that of the MPI library which mpi4py and mpi4jax were built with"
            )


def _allow_several_devices() -> None:
    """Let JAX carry mpi4jax's token once for each device.

    By default JAX refuses an ordered effect in a program of several devices, since it promises no order *between*
    devices. None is needed here: each device has its own communicator. The set has no public name.
    """
    from jax._src.effects import shardable_ordered_effects

    effect = importlib.import_module("mpi4jax._src.utils").OrderedMPIEffect
    shardable_ordered_effects.add_type(effect)


def _typed_as(value: jax.Array, result: jax.Array) -> jax.Array:
    """`result` with `value`'s type: mpi4jax's results seem the same on all devices, those of a switch on none."""
    wanted, has = varying_axes(value), varying_axes(result)
    if lacking := tuple(sorted(wanted - has)):
        result = lax.pcast(result, lacking, to="varying")
    return same_along(result, has - wanted)
