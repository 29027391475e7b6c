"""A collective operation as a plan names it: what travels, over which axes, at what cost in bytes."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"]
Transport = Literal["xla", "mpi"]


@dataclass(frozen=True)
class Collective:
    """One collective over some mesh axes.

    Attributes:
        kind: the operation, by the name that HLO gives it.
        axes: the mesh axes that it spans.
        size: how many devices take part, the product of the axes' sizes.
        elements: elements of the whole message: the array that all-reduce sums, that reduce-scatter
            takes in, that all-gather gives out, that all-to-all deals out, that one sender of a permute sends.
        dtype: what travels, by its NumPy name.
        groups: places along `axes`, counted row by row, that take part together; empty: all of them.
        pairs: (sender, receiver) of a collective-permute, as places along `axes`.
        transport: who carries it: XLA's collectives, or calls of an MPI library, whose ranks are then the places.
    """

    kind: Kind
    axes: tuple[str, ...]
    size: int
    elements: int
    dtype: str
    groups: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    transport: Transport = "xla"

    @property
    def bytes(self) -> int:
        """Bytes of the whole message (nccl-tests' S)."""
        return self.elements * jnp.dtype(self.dtype).itemsize

    @property
    def wire_bytes(self) -> int:
        """Fewest bytes that each device sends: `2 (n-1)/n S` for all-reduce, `(n-1)/n S` for its halves.

        The bound of Patarasuk and Yuan (2009), reached by rings and by halving-doubling. All-to-all sends
        `(n-1)/n S` too; a sender of a permute, `S`.

        >>> Collective("all-reduce", ("host",), 4, 1000, "float32").wire_bytes
        6000
        """
        if self.kind == "collective-permute":
            return self.bytes
        rounds = 2 if self.kind == "all-reduce" else 1
        return math.ceil(rounds * (self.size - 1) * self.bytes / self.size)


def axes_size(axes: Iterable[str], axis_sizes: Mapping[str, int]) -> int:
    """Number of devices that share the collective: the product of the sizes of `axes`."""
    return math.prod(axis_size(axis, axis_sizes) for axis in axes)


def axis_size(axis: str, axis_sizes: Mapping[str, int]) -> int:
    """The size of one; ValueError, which names those that there are, for no axis of the mesh.

    >>> axis_size("hosts", {"host": 2, "device": 4})
    Traceback (most recent call last):
    ValueError: the mesh has no axis 'hosts', only 'host', 'device'
    """
    try:
        return axis_sizes[axis]
    except KeyError:
        raise ValueError(f"the mesh has no axis {axis!r}, only {', '.join(map(repr, axis_sizes))}") from None


def wire_bytes_per_axis(
    collectives: Iterable[Collective], shares: Iterable[float] = itertools.repeat(1)
) -> dict[str, int]:
    """Bytes that the busiest device sends in one step, by the axes they travel over (`'host'`, `'host+device'`).

    All devices send alike but along trees, where a leaf sends once and the root once for each of its children.

    Args:
        collectives: of one step.
        shares: in what part of the steps each of them runs.

    >>> wire_bytes_per_axis([Collective("all-gather", ("device",), 2, 100, "float32")])
    {'device': 200}
    >>> from dataclasses import replace
    >>> up = Collective("collective-permute", ("host",), 2, 100, "float32", pairs=((1, 0),))
    >>> down = replace(up, pairs=((0, 1),))
    >>> wire_bytes_per_axis([up, down])
    {'host': 400}
    """
    by_all: defaultdict[str, float] = defaultdict(float)
    by_some: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for collective, share in zip(collectives, shares, strict=False):
        axes, sent = "+".join(collective.axes), share * collective.wire_bytes
        by_all[axes] += 0 if collective.pairs else sent
        for sender, _ in collective.pairs:
            by_some[axes][sender] += sent
    return {axes: round(sent + max(by_some[axes].values(), default=0)) for axes, sent in by_all.items()}
