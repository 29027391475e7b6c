"""Sum across hosts by MPI, as S-Caffe, Intel Caffe and CNTK do: the ranks of mpirun are the host axis.

Each process has a mesh of its own, `make_mesh(1)`, and reducers nest as usual:

    bucketed(scattered("device", mpi_all_reduce()), 25 * MiB)

It takes the arguments of `all_reduce`, so a named strategy can use it instead: `flat(all_reduce=mpi_all_reduce)`.
"""

import importlib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.expression import KiB, expressed
from jaxnet.comm.guards import (
    require_divides,
    require_varying,
    same_along,
    varying_along,
    varying_axes,
    without_derivative,
)
from jaxnet.comm.halves import scattered
from jaxnet.comm.mesh import HOST
from jaxnet.comm.reducer import AxisSizes, Collective, Plan, Reducer, axis_size, stateless
from jaxnet.comm.topology import Permutation, inverse, rotation
from jaxnet.comm.trees import binomial, permutation_of

# ---- Ranks ----
#
# Only this module imports mpi4jax. It orders its calls by tokens, each from the call before, so all ranks issue them in
# the order in which they were traced. The devices of one process run on threads of their own, whose calls interleave in
# any order: so each device has a communicator of its own, and a chain of tokens of its own.


# The number of processes, as launchers set it: MPI's own and others.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JAX_NUM_PROCESSES")
# Types that MPI does not know travel as their bits.
_CARRIERS = {"float16": "uint16", "bfloat16": "uint16"}


class Communicators:
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
        """Run `work` on this device's value and communicator; the result varies over the axes that `value` does.

        The first call makes the communicators; all ranks must make it.
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
        """MPI_Sendrecv: send to one rank while receiving from another; None is no rank."""
        nobody = self._mpi.PROC_NULL
        received: jax.Array = self._mpi4jax.sendrecv(
            value, value, nobody if source is None else source, nobody if to is None else to, comm=communicator
        )
        return received


class OneDevice:
    """A device's view of the devices at its place in the other ranks."""

    def __init__(self, ranks: Communicators, communicator: Any):
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self._communicator = ranks, communicator

    def total(self, value: jax.Array) -> jax.Array:
        """The sum over the ranks, as the MPI library computes it."""
        return self._ranks.sum_by_library(self._communicator, value)

    def send(self, value: jax.Array, permutation: Permutation) -> jax.Array | None:
        """What this rank receives when each sender sends its `value`; None where nothing arrives.

        Every rank makes the call, those without a partner with MPI_PROC_NULL, so that all run the same program.
        """
        to = next((receiver for sender, receiver in permutation if sender == self.rank), None)
        source = next((sender for sender, receiver in permutation if receiver == self.rank), None)
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
            # mpi4jax warns of any JAX newer than itself; our tests show whether the pair works.
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
    """Raise RuntimeError if MPI has one rank and a launcher started several: each would train alone, in silence."""
    for name in _COUNTS:
        if environ.get(name, "1") not in ("", "1"):
            raise RuntimeError(
                f"MPI counts one rank here, but {name}={environ[name]} says that this is one of several processes:"
                " start them with mpirun, that of the MPI library which mpi4py and mpi4jax were built with"
            )


def _allow_several_devices() -> None:
    """Let JAX carry mpi4jax's token once for each device.

    By default JAX refuses an ordered effect in a program of several devices, since it promises no order *between*
    devices. None is needed here: each device has its own communicator. JAX has no public name for this setting.
    """
    from jax._src.effects import shardable_ordered_effects

    effect = importlib.import_module("mpi4jax._src.utils").OrderedMPIEffect
    shardable_ordered_effects.add_type(effect)


def _typed_as(value: jax.Array, result: jax.Array) -> jax.Array:
    """`result` with `value`'s type: JAX types mpi4jax's results as the same on all devices, a switch's on none."""
    wanted, has = varying_axes(value), varying_axes(result)
    return same_along(varying_along(result, wanted), has - wanted)


# ---- The reducer ----


Algorithm = Literal["library", "tree", "ring"]
ALGORITHMS = ("library", "tree", "ring")

_RING_FROM_BYTES = 32 * KiB  # of the message, for each rank


@expressed
def mpi_all_reduce(
    *axes: str,
    algorithm: Algorithm | None = None,
    communicator: Any = None,
) -> Reducer:
    """Sum over the ranks of mpirun, which stand for the hosts, and over further axes inside each process.

    Law: on n ranks it equals `all_reduce(*axes)` on a mesh with n hosts. A device sums with the devices at its own
    place in the other processes, between a reduce-scatter and an all-gather over the further axes.

    Args:
        axes: first the mesh axis that the ranks replace, of size 1 in the mesh of each process; none: the hosts.
        algorithm: 'library': MPI_Allreduce, whose algorithm the library chooses; `log2(n)` rounds for small messages.
            'tree': a binomial reduction to rank 0 and the same way back (S-Caffe's binomial reduce and broadcast):
            `2 ceil(log2 n) (alpha + S beta)`. 'ring': reduce-scatter and all-gather around a ring,
            `2 (n-1) alpha + 2 (n-1)/n S beta`. None: by the size of the message, see docs/design/mpi_algorithms.md.
        communicator: an `mpi4py.MPI.Intracomm`; None: all ranks.

    Raises:
        ImportError: mpi4jax is missing.
        RuntimeError: these processes were not started by mpirun, or jax.distributed runs as well.
        ValueError: an unknown algorithm; later, a mesh whose `axis` is not 1, or a message that does not divide.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"no MPI algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}, and None: by size")
    axis, *inside = axes or (HOST,)
    reducer = _over_ranks(axis, algorithm, Communicators(communicator))
    for other in inside:
        reducer = scattered(other, reducer)
    return reducer


def _over_ranks(axis: str, algorithm: Algorithm | None, ranks: Communicators) -> Reducer:
    def reduce(message: jax.Array) -> jax.Array:
        require_varying(message, (axis,), "the message")
        _check(message, axis, lax.axis_size(axis), ranks.size)
        if ranks.size > 1:
            message = without_derivative(message, "mpi_all_reduce(...)", "JAX does not know what the library computes")
            work = _WORK[algorithm or choose_algorithm(message, ranks.size)]
            message = ranks.on_each_device(work, message)
        return same_along(message, (axis,))

    def plan(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> Plan:
        _check(spec, axis, axis_size(axis, axis_sizes), ranks.size)
        return Plan(planned(algorithm or choose_algorithm(spec, ranks.size), spec, ranks.size, axis), ranks.size)

    return stateless(reduce, plan)


def choose_algorithm(message: jax.ShapeDtypeStruct | jax.Array, ranks: int) -> Algorithm:
    """The algorithm for a message of this size: few rounds if it is small, few bytes if it is large.

    >>> choose_algorithm(jax.ShapeDtypeStruct((256,), "float32"), 2)
    'library'
    >>> choose_algorithm(jax.ShapeDtypeStruct((2**20,), "float32"), 2)
    'ring'
    """
    dtype = jnp.dtype(message.dtype)
    if math.prod(message.shape) * dtype.itemsize >= ranks * _RING_FROM_BYTES:
        return "ring"
    return "library" if carrier_of(dtype) == dtype.name else "tree"


def planned(algorithm: Algorithm, spec: jax.ShapeDtypeStruct, ranks: int, axis: str = HOST) -> tuple[Collective, ...]:
    """What the ranks put on the wire for one message, round by round.

    >>> spec = jax.ShapeDtypeStruct((1024,), "float32")
    >>> [collective.elements for collective in planned("ring", spec, 4)]
    [256, 256, 256, 256, 256, 256]
    >>> [collective.pairs for collective in planned("tree", spec, 4)]
    [((1, 0), (3, 2)), ((2, 0),), ((0, 2),), ((0, 1), (2, 3))]
    """
    elements, dtype = math.prod(spec.shape), carrier_of(spec.dtype)
    if ranks == 1:
        return ()
    if algorithm == "library":
        return (Collective("all-reduce", (axis,), ranks, elements, dtype, transport="mpi"),)
    if algorithm == "tree":
        up = _tree_rounds(ranks)
        rounds, size = [*up, *map(inverse, reversed(up))], elements
    else:
        rounds, size = 2 * (ranks - 1) * [rotation(ranks, 1)], elements // ranks
    return tuple(
        Collective("collective-permute", (axis,), ranks, size, dtype, pairs=pairs, transport="mpi") for pairs in rounds
    )


# ---- The algorithms ----
#
# They are not brackets of `Halves`, for two reasons. A rank is known when its program is traced, so a rank picks its
# chunks as Python ints and leaves out additions that are not its own; halves are one program for all places, which look
# their chunks up at run time. And each device has a communicator of its own, so the whole algorithm runs in one branch
# of a switch over devices; halves would be two switches around `inner`.


def _by_library(device: OneDevice, message: jax.Array) -> jax.Array:
    if carrier_of(message.dtype) != message.dtype.name:
        raise ValueError(f"MPI cannot sum {message.dtype.name}; take algorithm='ring' or 'tree', which sum here")
    return device.total(message)


def _by_ring(device: OneDevice, message: jax.Array) -> jax.Array:
    rank, size = device.rank, device.size
    to_next, chunks = rotation(size, 1), message.reshape(size, -1)
    # 1. Reduce-scatter. The sum of chunk r starts on rank r, and each rank that it reaches adds its own.
    travelling = chunks[rank]
    for step in range(1, size):
        travelling = _received(device.send(travelling, to_next)) + chunks[(rank - step) % size]
    # 2. All-gather. This rank has the whole sum of chunk rank + 1; each further round brings the one before.
    sums = [travelling]
    for _ in range(size - 1):
        sums.append(_received(device.send(sums[-1], to_next)))
    return jnp.concatenate([sums[(rank + 1 - chunk) % size] for chunk in range(size)])


def _by_tree(device: OneDevice, message: jax.Array) -> jax.Array:
    rounds = _tree_rounds(device.size)
    for permutation in rounds:
        received = device.send(message, permutation)
        message = message if received is None else message + received
    for permutation in reversed(rounds):
        received = device.send(message, inverse(permutation))
        message = message if received is None else received
    return message


_WORK = {"library": _by_library, "tree": _by_tree, "ring": _by_ring}


def _received(value: jax.Array | None) -> jax.Array:
    assert value is not None, "in a ring every rank has a sender"
    return value


def _tree_rounds(ranks: int) -> list[Permutation]:
    return [permutation_of(edges) for edges in binomial(ranks)]


def _check(message: jax.ShapeDtypeStruct | jax.Array, axis: str, size: int, ranks: int) -> None:
    if size != 1:
        raise ValueError(
            f"mpi_all_reduce replaces mesh axis {axis!r}, which must have size 1 in each process, and it has"
            f" {size}: make the mesh with make_mesh(1), of this process's own devices"
        )
    require_divides(message, "mpi_all_reduce", ranks, "the number of ranks")
