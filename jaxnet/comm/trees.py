"""Reduce to one root along a tree and broadcast back: the trees of MPI, S-Caffe and parameter servers.

A tree is a schedule: who sends which chunk to whom in which round, in plain Python ints. The broadcast is the same
schedule run backwards. Five devices, the binomial tree; `01` is the sum of devices 0 and 1:

    round   device 0   device 1   device 2   device 3   device 4
    start   0          1          2          3          4
    1       01                    23                    4           1 -> 0, 3 -> 2
    2       0123                                        4           2 -> 0
    3       01234                                                   4 -> 0
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import require_count
from jaxnet.comm.halves import IDENTITY, Halves, Round, bracket, permuted_halves
from jaxnet.comm.reducer import AxisSizes, Plan, PyTree, Reducer
from jaxnet.comm.topology import Axis, Line, Permutation, among_roots

# ---- The reducer ----


Tree = Literal["binomial", "chain", "chunked_chain", "star"]


@expressed
def rooted(
    axis: Axis,
    inner: Reducer = IDENTITY,
    *,
    tree: Tree = "binomial",
    chunks: int = 8,
    piece_bytes: int | None = None,
) -> Reducer:
    """Reduce to the root (place 0) of `axis` along a tree, `inner` on the root's sum, broadcast back along the tree.

    Law: as `scattered(axis, inner)`, without shards. Time of one half, for P devices, n bytes and k chunks, each
    device sending and receiving one message at a time:

    - "binomial": `ceil(log2 P) (alpha + n beta)`. Few rounds: small messages.
    - "chain": `(P-1) (alpha + n beta)`.
    - "chunked_chain": `(k + P - 2) (alpha + n/k beta)`, least at `best_chunks`. Near `n beta`: large messages.
    - "star": `(P-1) (alpha + n beta)`, all at the root: one parameter server.

    Nested, it is the hierarchical reduce of S-Caffe (Awan et al., PPoPP 2017), chunked chain within a host and
    binomial across; permutes of `inner` then leave from roots alone:
    `rooted("device", rooted("host", tree="binomial"), tree="chunked_chain")`.
    On the other devices `inner` works on sums of a part of the tree; the broadcast replaces its result.

    Args:
        axis: a mesh axis, or a factor of one.
        inner: sums over other axes; nothing by default. If it sends other than by permutes, all devices send.
        tree: the shape, see above.
        chunks: of the chunked chain; the message must have a multiple of so many elements; `bucketed` pads to it.
        piece_bytes: as for `ring`.

    >>> hr = rooted("device", rooted("host"), tree="chunked_chain", chunks=2)
    >>> plan = hr.plan(jax.ShapeDtypeStruct((8,), "float32"), {"host": 2, "device": 2})
    >>> [(collective.elements, collective.pairs) for collective in plan.collectives[:3]]
    [(4, ((1, 0),)), (4, ((1, 0),)), (8, ((2, 0),))]
    """
    halves = rooted_halves(axis, tree=tree, chunks=chunks, piece_bytes=piece_bytes)
    return bracket(halves, _from_roots(axis, inner))


@expressed
def rooted_halves(axis: Axis, *, tree: Tree = "binomial", chunks: int = 8, piece_bytes: int | None = None) -> Halves:
    """The two halves of `rooted`: a reduction to the root and a broadcast from it. Arguments as for `rooted`.

    They make no shards, so `sharded` refuses them.
    """
    if tree not in get_args(Tree):
        raise ValueError(f"no tree {tree!r}; there are: {', '.join(get_args(Tree))}")
    require_count(chunks, "chunks")
    chunks = chunks if tree == "chunked_chain" else 1

    def permutes(size: int, elements: int) -> list[Round]:
        return [(permutation_of(edges), elements // chunks) for edges in rounds_of(tree, size, chunks)]

    return permuted_halves(
        axis,
        lambda message, line: _reduce(message, line, rounds_of(tree, line.size, chunks), chunks),
        lambda total, line: _broadcast(total, line, rounds_of(tree, line.size, chunks), chunks),
        permutes,
        name=f"rooted({axis!r})",
        piece_bytes=piece_bytes,
        chunks=chunks,
    )


def _from_roots(axis: Axis, inner: Reducer) -> Reducer:
    """`inner`, whose permutes leave from roots along `axis` alone."""

    def reduce_fn(value: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        with among_roots(axis):
            return inner.reduce(value, state)

    def plan_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> Plan:
        with among_roots(axis):
            return inner.plan(spec, axis_sizes)

    return Reducer(inner.init, reduce_fn, plan_fn)


# ---- Trees as schedules ----


class Edge(NamedTuple):
    """Place `sender` sends its chunk number `chunk` to place `receiver`, which adds it to its own."""

    sender: int
    receiver: int
    chunk: int


Rounds = tuple[tuple[Edge, ...], ...]


def rounds_of(tree: Tree, size: int, chunks: int) -> Rounds:
    """The reduction of a line of `size` devices to place 0; only the chunked chain uses `chunks`."""
    shapes: dict[Tree, Callable[[], Rounds]] = {
        "binomial": lambda: binomial(size),
        "chain": lambda: chain(size),
        "chunked_chain": lambda: chain(size, chunks),
        "star": lambda: star(size),
    }
    return shapes[tree]()


def binomial(size: int) -> Rounds:
    """Neighbours, then neighbours of neighbours: `ceil(log2 size)` rounds.

    >>> [[edge[:2] for edge in edges] for edges in binomial(5)]
    [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    distances = [2**level for level in range((size - 1).bit_length())]
    return tuple(tuple(Edge(far, far - d, 0) for far in range(d, size, 2 * d)) for d in distances)


def chain(size: int, chunks: int = 1) -> Rounds:
    """From the last place to the first, one chunk behind the other: `chunks + size - 2` rounds.

    In round r place p sends chunk `r - (size - 1 - p)`, if there is such a chunk.

    >>> [[tuple(edge) for edge in edges] for edges in chain(3, 2)]
    [[(2, 1, 0)], [(1, 0, 0), (2, 1, 1)], [(1, 0, 1)]]
    """

    def in_round(number: int) -> tuple[Edge, ...]:
        places = ((place, number - (size - 1 - place)) for place in range(1, size))
        return tuple(Edge(place, place - 1, chunk) for place, chunk in places if 0 <= chunk < chunks)

    return tuple(in_round(number) for number in range(chunks + size - 2))


def star(size: int) -> Rounds:
    """All to the root, one after the other because it has one link: `size - 1` rounds."""
    return tuple((Edge(place, 0, 0),) for place in range(1, size))


def permutation_of(edges: Sequence[Edge]) -> Permutation:
    """Senders and receivers of a round, without the chunks."""
    return tuple((edge.sender, edge.receiver) for edge in edges)


def best_chunks(size: int, nbytes: float, latency: float, seconds_per_byte: float) -> int:
    """The number of chunks for which a chunked chain takes least time: `sqrt((P-2) n beta / alpha)`, rounded well.

    Args:
        size: devices in the chain.
        nbytes: bytes of the message.
        latency: seconds a message costs, however short (alpha); above 0, or no number of chunks would be best.
        seconds_per_byte: what each byte adds (beta).

    Raises:
        ValueError: a latency of 0 or less.

    >>> best_chunks(8, 2**25, 50e-6, 8e-9)  # 32 MiB at 1 Gbit/s
    179
    """
    if latency <= 0:
        raise ValueError(f"latency must be above 0 seconds, got {latency}")
    exact = math.sqrt((size - 2) * nbytes * seconds_per_byte / latency) if size > 2 else 1.0
    around = {max(1, math.floor(exact)), max(1, math.ceil(exact))}
    return min(around, key=lambda k: (k + size - 2) * (latency + nbytes / k * seconds_per_byte))


# ---- A schedule on devices ----
#
# One program runs on all devices, so which chunk a device sends or receives in a round is looked up by its place.


def _reduce(message: jax.Array, line: Line, rounds: Rounds, chunks: int) -> jax.Array:
    """The sum on place 0, sums of subtrees elsewhere."""
    for edges in rounds:
        sent = _Chunk({edge.sender: edge.chunk for edge in edges}, chunks, line)
        received = _Chunk({edge.receiver: edge.chunk for edge in edges}, chunks, line)
        # Every device adds; where nothing arrives, `send` gives zeros.
        more = line.send(sent.of(message), permutation_of(edges))
        message = received.put(message, received.of(message) + more)
    return message


def _broadcast(total: jax.Array, line: Line, rounds: Rounds, chunks: int) -> jax.Array:
    """The value of place 0 everywhere."""
    for edges in reversed(rounds):
        back = [Edge(edge.receiver, edge.sender, edge.chunk) for edge in edges]
        sent = _Chunk({edge.sender: edge.chunk for edge in back}, chunks, line)
        received = _Chunk({edge.receiver: edge.chunk for edge in back}, chunks, line)
        arrived = line.send(sent.of(total), permutation_of(back))
        # Selected, not added to zeros: that would turn -0.0 into 0.0, and the bits must be those of the root.
        total = received.put(total, jnp.where(received.here(), arrived, received.of(total)))
    return total


class _Chunk:
    """The chunk that each of some places sends or receives in a round."""

    def __init__(self, of_place: dict[int, int], chunks: int, line: Line) -> None:
        self._of_place, self._chunks, self._line = of_place, chunks, line

    def here(self) -> jax.Array:
        """Whether this device is one of the places."""
        return jnp.asarray([place in self._of_place for place in range(self._line.size)])[self._line.place()]

    def of(self, message: jax.Array) -> jax.Array:
        """The chunk; the message's first on a device that is none of the places."""
        if self._chunks == 1:
            return message
        return lax.dynamic_slice(message, (self._start(message),), (message.size // self._chunks,))

    def put(self, message: jax.Array, chunk: jax.Array) -> jax.Array:
        """The message with the chunk in its place."""
        if self._chunks == 1:
            return chunk
        return lax.dynamic_update_slice(message, chunk, (self._start(message),))

    def _start(self, message: jax.Array) -> jax.Array:
        numbers = np.array([self._of_place.get(place, 0) for place in range(self._line.size)], np.int32)
        return jnp.asarray(numbers)[self._line.place()] * (message.size // self._chunks)
