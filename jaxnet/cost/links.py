"""Which links a collective takes, and for how long, at the full rate of a data sheet.

GPUs have two: NVLink inside a host, `near`, and the network between hosts, `far`. The chips of a TPU slice have a link
to either neighbour along each dim of their torus, `x`, `y` and `z`, and a network between slices, `far`:

    chip - chip - chip - chip      v5e:4x4: four lines along each dim, whose ends are joined only where a dim has 16
      |      |      |      |
    chip - chip - chip - chip      A sum along a line sends over links of that dim alone, so the others stay free.

What one chip sends to another goes along the last dim first, the shorter way round, and shares each link with all that
the same collective sends over it.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxnet.comm import Collective, FoundCollective
from jaxnet.cost.accelerators import Cluster

_DIMS = "xyz"


class Load(NamedTuple):
    """What a collective is for the links.

    Attributes:
        links: those it takes: 'near' or 'far'; in a TPU slice some of 'x', 'y' and 'z'.
        bytes: that a device sends.
        seconds: on them, from the first byte that leaves to the last that arrives.
    """

    links: tuple[str, ...]
    bytes: int
    seconds: float


def load(found: FoundCollective, cluster: Cluster) -> Load:
    """The load of one collective of a program that was compiled for `cluster`, whose places are those of its mesh."""
    parties = _parties(found, cluster)
    size = cluster.slices if found.transport == "dcn" else len(parties[0])
    sent = sum(Collective(found.kind, (), size, elements, dtype).wire_bytes for dtype, elements in found.arrays)
    near = 1 if found.transport == "dcn" else _near(parties, cluster)
    latency = cluster.accelerator.latency
    if near < size:
        # What k devices of a host send together to another host shares their k connections to the network.
        inside = sent / cluster.near_rate if near > 1 else 0.0
        return Load(("far",), sent, latency[1] + max(inside, sent / (near * cluster.accelerator.far)))
    if cluster.accelerator.platform == "gpu":
        return Load(("near",), sent, latency[0] + sent / cluster.near_rate)
    links, slowdown = _in_torus(found, parties, cluster)
    return Load(links, sent, latency[0] + sent * slowdown / cluster.link_rate)


def _parties(found: FoundCollective, cluster: Cluster) -> list[tuple[int, ...]]:
    """Places that exchange with each other: groups, or the senders and receivers of a permute."""
    return [tuple(pair) for pair in found.pairs] or [tuple(group) for group in found.groups] or [_all(found, cluster)]


def _all(found: FoundCollective, cluster: Cluster) -> tuple[int, ...]:
    return tuple(range(found.partitions if _numbers_a_slice(found, cluster) else cluster.devices))


def _numbers_a_slice(found: FoundCollective, cluster: Cluster) -> bool:
    """Whether the places are those of one slice of several, as XLA numbers them where slices exchange by themselves."""
    return found.partitions == cluster.near_devices < cluster.devices


def _near(parties: Sequence[tuple[int, ...]], cluster: Cluster) -> int:
    """How many of a party are on one host, or in one slice, where they are fewest."""
    hosts = [collections.Counter(place // cluster.near_devices for place in party) for party in parties]
    return min(max(each.values()) for each in hosts)


# ---- In a torus ---------------------------------------------------------------------------------------------------


def _in_torus(
    found: FoundCollective, parties: Sequence[tuple[int, ...]], cluster: Cluster
) -> tuple[tuple[str, ...], float]:
    """The dims whose links are taken, and the time on them in that of a message on one link."""
    # 1. Where each place is in its slice.
    places = np.arange(cluster.near_devices)
    chips = list(zip(*(index.tolist() for index in np.unravel_index(places, cluster.sizes)), strict=True))
    party_chips = [[chips[place % cluster.near_devices] for place in party] for party in parties]
    # 2. A permute takes as long as the fullest link, by the number of its messages.
    if found.kind == "collective-permute":
        taken = collections.Counter(
            hop for sender, receiver in party_chips for hop in _hops(sender, receiver, cluster) if sender != receiver
        )
        dims = {dim for _, dim, _ in taken}
        return _named(dims), float(max(taken.values(), default=0))
    # 3. Of an all-to-all, half of what all chips send crosses the middle of each dim.
    dims = {dim for party in party_chips for dim in range(len(cluster.sizes)) if len({chip[dim] for chip in party}) > 1}
    wires = {dim: 2 if cluster.closed[dim] else 1 for dim in dims}
    if found.kind == "all-to-all":
        members = len(party_chips[0])
        crossing = max((cluster.sizes[dim] / (4 * wires[dim]) for dim in dims), default=0.0)
        return _named(dims), crossing * members / (members - 1)
    # 4. A sum over a line or a block of chips keeps all its links busy: at the ends of an open line, one for each dim.
    return _named(dims), 1 / sum(wires.values())


def _hops(
    sender: tuple[int, ...], receiver: tuple[int, ...], cluster: Cluster
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Links on the way, each as the chip that it leaves, its dim and its direction."""
    at = list(sender)
    for dim in reversed(range(len(at))):
        size, steps = cluster.sizes[dim], receiver[dim] - at[dim]
        if cluster.closed[dim] and abs(steps) * 2 > size:
            steps -= size if steps > 0 else -size
        direction = 1 if steps > 0 else -1
        for _ in range(abs(steps)):
            yield tuple(at), dim, direction
            at[dim] = (at[dim] + direction) % size


def _named(dims: set[int]) -> tuple[str, ...]:
    return tuple(_DIMS[dim] for dim in sorted(dims)) or ("near",)
