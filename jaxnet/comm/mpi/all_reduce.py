"""The sum across hosts by MPI, as in S-Caffe, Intel Caffe and CNTK: the ranks of mpirun take the host axis's place.

Each process has a mesh of its own, `make_mesh(1)`, and strategies nest as ever:

    bucketed(scattered("device", mpi_all_reduce()), 25 * MiB)

It is called as `all_reduce` is, so a named strategy takes it in that one's place: `flat(all_reduce=mpi_all_reduce)`.
"""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.algorithms.all_reduce import scattered
from jaxnet.comm.algorithms.hops import Hops, backwards, ring_of
from jaxnet.comm.algorithms.trees import binomial, hops_of
from jaxnet.comm.collective import Collective, axis_size
from jaxnet.comm.dtypes import require_divides
from jaxnet.comm.mesh import HOST
from jaxnet.comm.mpi.ranks import OneDevice, Ranks, carrier_of
from jaxnet.comm.reducer import AxisSizes, KiB, Plan, Reducer, stateless
from jaxnet.comm.vma import require_varying, same_along

Algorithm = Literal["library", "tree", "ring"]
ALGORITHMS = ("library", "tree", "ring")

_RING_FROM_BYTES = 32 * KiB  # of the message, for each rank


def mpi_all_reduce(
    *axes: str,
    algorithm: Algorithm | None = None,
    communicator: Any = None,
) -> Reducer:
    """Sum over the ranks of mpirun, which stand for the hosts, and over further axes inside each process.

    Law: on n ranks it equals `all_reduce(*axes)` on a mesh with n hosts. A device sums with the devices at its own
    place in the other processes, after a reduce-scatter over the further axes, which an all-gather ends.

    Args:
        axes: first the mesh axis whose place the ranks take, of size 1 in the mesh of each process; none: the hosts.
        algorithm: 'library': MPI_Allreduce as the library sees fit, `log2(n)` rounds for small messages.
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
    reducer = _over_ranks(axis, algorithm, Ranks(communicator))
    for other in inside:
        reducer = scattered(other, reducer)
    return reducer


def _over_ranks(axis: str, algorithm: Algorithm | None, ranks: Ranks) -> Reducer:

    def reduce(message: jax.Array) -> jax.Array:
        require_varying(message, (axis,), "the message")
        _check(message, axis, lax.axis_size(axis), ranks.size)
        if ranks.size > 1:
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
        rounds, size = [*up, *map(backwards, reversed(up))], elements
    else:
        rounds, size = 2 * (ranks - 1) * [ring_of(ranks, 1)], elements // ranks
    return tuple(
        Collective("collective-permute", (axis,), ranks, size, dtype, pairs=hops, transport="mpi") for hops in rounds
    )


def _by_library(device: OneDevice, message: jax.Array) -> jax.Array:
    if carrier_of(message.dtype) != message.dtype.name:
        raise ValueError(f"MPI cannot sum {message.dtype.name}; take algorithm='ring' or 'tree', which sum here")
    return device.total(message)


def _by_ring(device: OneDevice, message: jax.Array) -> jax.Array:
    rank, size = device.rank, device.size
    hops, chunks = ring_of(size, 1), message.reshape(size, -1)
    travelling = chunks[rank]
    for step in range(1, size):
        travelling = _received(device.send(travelling, hops)) + chunks[(rank - step) % size]
    # It is now the whole sum of chunk rank + 1; each further hop brings the one before.
    sums = [travelling]
    for _ in range(size - 1):
        sums.append(_received(device.send(sums[-1], hops)))
    return jnp.concatenate([sums[(rank + 1 - chunk) % size] for chunk in range(size)])


def _by_tree(device: OneDevice, message: jax.Array) -> jax.Array:
    rounds = _tree_rounds(device.size)
    for hops in rounds:
        received = device.send(message, hops)
        message = message if received is None else message + received
    for hops in reversed(rounds):
        received = device.send(message, backwards(hops))
        message = message if received is None else received
    return message


_WORK = {"library": _by_library, "tree": _by_tree, "ring": _by_ring}


def _received(value: jax.Array | None) -> jax.Array:
    assert value is not None, "in a ring every rank has a sender"
    return value


def _tree_rounds(ranks: int) -> list[Hops]:
    return [hops_of(edges) for edges in binomial(ranks)]


def _check(message: jax.ShapeDtypeStruct | jax.Array, axis: str, size: int, ranks: int) -> None:
    if size != 1:
        raise ValueError(
            f"mpi_all_reduce takes the place of mesh axis {axis!r}, which must have size 1 in each process, and it has"
            f" {size}: make the mesh with make_mesh(1), of this process's own devices"
        )
    require_divides(message, "mpi_all_reduce", ranks, "the number of ranks")
