"""Which links a collective takes, and for how long, at the full rate of a data sheet.

GPUs have two: NVLink inside a host, `near`, and the network between hosts, `far`. The chips of a TPU slice have a link
to either neighbour along each dim of their torus, `x`, `y` and `z`, and a network between slices, `far`:

    chip - chip - chip - chip      v5e:4x4: four lines along each dim, whose ends are joined only where a dim has 16
      |      |      |      |
    chip - chip - chip - chip      A sum along a line sends over links of that dim alone, so the others stay free.

What one chip sends to another goes along the last dim first, the shorter way round. Links are shared by all that the
same collective sends over them: by the messages of a permute, and by groups that lie in each other along a line.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """Where a device of the mesh is.

    Attributes:
        near: the number of its host of GPUs, or of its TPU slice.
        chip: its coordinates in the slice.
    """

    near: int
    chip: tuple[int, ...]


def places_of(cluster: Cluster, devices: Iterable[Any] = ()) -> list[Place]:
    """The places of a mesh's devices, in its order; of none that say theirs, one row of the cluster after the other.

    >>> places_of(Cluster.named("v5e:2x2/2"))[5]
    Place(near=1, chip=(0, 1))
    """
    said, dims = list(devices), len(cluster.sizes)
    tpu = cluster.accelerator.platform == "tpu"
    if tpu and said and all(hasattr(device, "coords") for device in said):
        return [Place(getattr(device, "slice_index", None) or 0, tuple(device.coords[:dims])) for device in said]
    near = cluster.near_devices
    sizes = cluster.sizes if tpu else (near,)
    chips = [tuple(int(index) for index in np.unravel_index(place, sizes)) for place in range(near)]
    return [Place(place // near, chips[place % near]) for place in range(cluster.devices)]


def load(found: FoundCollective, cluster: Cluster, places: Sequence[Place]) -> Load:
    """The load of one collective of a program that was compiled for `cluster`, on a mesh of these places."""
    numbered = _numbered(found, cluster, places)
    parties = [[numbered[place] for place in party] for party in _parties(found, len(numbered))]
    size = cluster.slices if found.transport == "dcn" else max(map(len, parties))
    sent = sum(Collective(found.kind, (), size, elements, dtype).wire_bytes for dtype, elements in found.arrays)
    near = 1 if found.transport == "dcn" else min(_near(party) for party in parties)
    latency = cluster.accelerator.latency
    if near < size:
        # What k devices of a host send together to another host shares their k connections to the network. But of an
        # all-to-all each sends by its own connection what is for other hosts.
        inside = sent / cluster.near_rate if near > 1 else 0.0
        outside = sent * (size - near) / (size - 1) if found.kind == "all-to-all" else sent / near
        return Load(("far",), sent, latency[1] + max(inside, outside / cluster.accelerator.far))
    if cluster.accelerator.platform == "gpu" or size < 2:
        return Load(("near",), sent, latency[0] + sent / cluster.near_rate)
    links, slowdown = _in_torus(found, [[place.chip for place in party] for party in parties], cluster)
    return Load(links, sent, latency[0] + sent * slowdown / cluster.link_rate)


def _numbered(found: FoundCollective, cluster: Cluster, places: Sequence[Place]) -> Sequence[Place]:
    """The places by the program's numbers: where slices exchange by themselves, XLA numbers those of one slice."""
    if found.partitions == cluster.near_devices < len(places):
        return [place for place in places if place.near == places[0].near]
    return places


def _parties(found: FoundCollective, count: int) -> list[tuple[int, ...]]:
    """Numbers that exchange with each other: groups, or the senders and receivers of a permute."""
    parties = [tuple(pair) for pair in found.pairs] or [tuple(group) for group in found.groups if group]
    return parties or [tuple(range(count))]


def _near(party: Sequence[Place]) -> int:
    """How many of a party are on one host, or in one slice."""
    return max(collections.Counter(place.near for place in party).values())


# ---- In a torus ---------------------------------------------------------------------------------------------------


_Chip = tuple[int, ...]


def _in_torus(
    found: FoundCollective, parties: Sequence[Sequence[_Chip]], cluster: Cluster
) -> tuple[tuple[str, ...], float]:
    """The dims whose links are taken, and the time on them in that of what a device sends on one link."""
    # 1. A permute takes as long as the fullest link, by the number of its messages.
    if found.kind == "collective-permute":
        taken = collections.Counter(hop for sender, receiver in parties for hop in _hops(sender, receiver, cluster))
        return _named({dim for _, dim, _ in taken}), float(max(taken.values(), default=0))
    # 2. A group lies along the dims in which its chips differ, and has a part of their links.
    dims = {dim for party in parties for dim in range(len(cluster.sizes)) if len({chip[dim] for chip in party}) > 1}
    wires = {dim: _wires(parties, dim, cluster) for dim in dims}
    # 3. Of an all-to-all, half of what all chips send crosses the middle of each dim.
    if found.kind == "all-to-all":
        members = max(map(len, parties))
        lengths = {dim: max(len({chip[dim] for chip in party}) for party in parties) for dim in dims}
        crossing = max(lengths[dim] / (4 * wires[dim]) for dim in dims)
        return _named(dims), crossing * members / (members - 1)
    # 4. A sum over a line or a block of chips keeps all its links busy: at the ends of an open line, one for each dim.
    return _named(dims), 1 / sum(wires.values())


def _wires(parties: Sequence[Sequence[_Chip]], dim: int, cluster: Cluster) -> float:
    """Links along a dim over which a chip sends at once, shared among the groups that lie over the same ones.

    In an open line of four, the groups 0 1 and 2 3 have a link each; the groups 0 2 and 1 3 share the middle one.
    """
    over: collections.Counter[tuple[_Chip, int]] = collections.Counter()
    whole = cluster.closed[dim]
    for party in parties:
        lines: dict[_Chip, set[int]] = {}
        for chip in party:
            lines.setdefault((*chip[:dim], *chip[dim + 1 :]), set()).add(chip[dim])
        for line, at in lines.items():
            over.update((line, link) for link in range(min(at), max(at)))
            whole = whole and len(at) in (1, cluster.sizes[dim])
    return (2 if whole else 1) / max(over.values())


def _hops(sender: _Chip, receiver: _Chip, cluster: Cluster) -> Iterator[tuple[_Chip, int, int]]:
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
