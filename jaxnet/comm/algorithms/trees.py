"""Reduction trees as schedules: who sends which chunk to whom in which round. Plain Python ints.

A broadcast is the same schedule run backwards.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from jaxnet.comm.algorithms.hops import Hops

Tree = Literal["binomial", "chain", "chunked_chain", "star"]


class Edge(NamedTuple):
    """Place `sender` sends its chunk number `chunk` to place `receiver`, which adds it to its own."""

    sender: int
    receiver: int
    chunk: int


Rounds = tuple[tuple[Edge, ...], ...]


def hops_of(edges: Sequence[Edge]) -> Hops:
    """The same, without the chunks."""
    return tuple((edge.sender, edge.receiver) for edge in edges)


def binomial(size: int) -> Rounds:
    """Neighbours, then neighbours of neighbours: `ceil(log2 size)` rounds.

    >>> [[edge[:2] for edge in edges] for edges in binomial(5)]
    [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    distances = [2**level for level in range((size - 1).bit_length())]
    return tuple(tuple(Edge(far, far - d, 0) for far in range(d, size, 2 * d)) for d in distances)


def chain(size: int, chunks: int = 1) -> Rounds:
    """From the last place to the first, a chunk behind the other: `chunks + size - 2` rounds.

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


def rounds_of(tree: Tree, size: int, chunks: int) -> Rounds:
    """The reduction of a line of `size` devices to place 0; `chunks` matters to the chunked chain alone."""
    shapes: dict[Tree, Callable[[], Rounds]] = {
        "binomial": lambda: binomial(size),
        "chain": lambda: chain(size),
        "chunked_chain": lambda: chain(size, chunks),
        "star": lambda: star(size),
    }
    return shapes[tree]()


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
