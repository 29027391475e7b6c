"""A compiled program's schedule in time: what its operations and collectives take at the published rates of a device.

A model, not a measurement. Operations run one after the other, each as long as its products or its bytes take at the
full rate. A collective begins at its start, or when its link is free; it has arrived when the bytes that a device must
send have left at the full rate of the link. The device waits for it at its done. What the device waits is exposed:

    compute   | product | product |............| update |
    near           | sum of a bucket           |                a part of one product is hidden behind the other
"""

import collections
from dataclasses import dataclass
from typing import NamedTuple

from jaxnet.comm import Collective, FoundCollective, collectives_in, programs_in, schedule
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.work import Counter, Work


class Span(NamedTuple):
    """Something that takes time.

    Attributes:
        name: the instruction's.
        track: 'compute', 'wait', or the link that is busy: 'near' or 'far'.
        begin: seconds since the step began.
        end: likewise.
    """

    name: str
    track: str
    begin: float
    end: float


@dataclass(frozen=True)
class Travel:
    """A collective of the program in time.

    Attributes:
        found: the collective.
        link: 'near' or 'far'.
        bytes: that a device sends for it.
        seconds: on its link.
        exposed: seconds for which the device waits for it.
        beside: what is computed between its start and its done.
    """

    found: FoundCollective
    link: str
    bytes: int
    seconds: float
    exposed: float
    beside: Work


@dataclass(frozen=True)
class Timeline:
    """A step in time, by the model.

    Attributes:
        travels: the collectives, in schedule order.
        spans: all that takes time.
        seconds: of the step.
    """

    travels: tuple[Travel, ...]
    spans: tuple[Span, ...]
    seconds: float

    @property
    def compute(self) -> float:
        """Seconds of all operations."""
        return sum(span.end - span.begin for span in self.spans if span.track == "compute")

    @property
    def exposed(self) -> float:
        """Seconds of the step for which the device waits for collectives."""
        return sum(travel.exposed for travel in self.travels)


def modelled(hlo: str, cluster: Cluster) -> Timeline:
    """The schedule of a program in time, on such devices.

    Args:
        hlo: `jax.jit(f).lower(...).compile().as_text()` of one program. A loop that holds collectives counts once.
        cluster: the devices that it was compiled for.
    """
    [program] = programs_in(hlo)
    steps, collectives = schedule(program), collectives_in(hlo)
    counter, clock = Counter(program), _Clock()
    begun = {found.start: found for found in collectives}
    ended = {found.done: found for found in collectives}
    parts = begun.keys() | ended.keys()
    done: dict[str, tuple[float, float]] = {}
    prefix = [Work()]
    for place, step in enumerate(steps):
        # 1. A collective whose start this is takes its link as soon as that is free.
        if found := begun.get(place):
            link, seconds = _link(found, cluster), _seconds(found, cluster)
            clock.send(found.name, link, seconds)
        # 2. An operation takes as long as its products, or its bytes.
        work = Work() if place in parts else counter.work(step)
        clock.compute(step.name, roofline(work, cluster))
        prefix.append(work)
        # 3. At its done the device waits for the collective.
        if found := ended.get(place):
            done[found.name] = clock.wait(found.name)
    travels = []
    for found in collectives:
        beside = sum(prefix[found.start + 2 : found.done + 1], Work())
        sent = _wire_bytes(found, cluster)
        travels.append(Travel(found, _link(found, cluster), sent, *done[found.name], beside))
    return Timeline(tuple(travels), tuple(clock.spans), clock.now)


def roofline(work: Work, cluster: Cluster) -> float:
    """Seconds: what takes longer, the products at their rate or the bytes at that of memory."""
    kind = cluster.accelerator
    products = sum(count / kind.rate(dtype) for dtype, count in work.flops.items())
    return max(products, work.bytes / kind.memory_rate)


class _Clock:
    """The device's time, and how long each link is busy."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spans: list[Span] = []
        self._free = {"near": 0.0, "far": 0.0}
        self._arrives: dict[str, tuple[float, float]] = {}

    def compute(self, name: str, seconds: float) -> None:
        if seconds > 0:
            self.spans.append(Span(name, "compute", self.now, self.now + seconds))
            self.now += seconds

    def send(self, name: str, link: str, seconds: float) -> None:
        begin = max(self.now, self._free[link])
        self._free[link] = begin + seconds
        self._arrives[name] = begin + seconds, seconds
        self.spans.append(Span(name, link, begin, begin + seconds))

    def wait(self, name: str) -> tuple[float, float]:
        """Seconds on the link, and of waiting for it now."""
        arrives, seconds = self._arrives[name]
        waited = max(0.0, arrives - self.now)
        if waited:
            self.spans.append(Span(name, "wait", self.now, arrives))
            self.now = arrives
        return seconds, waited


# ---- Collectives on links -----------------------------------------------------------------------------------------


def _members(found: FoundCollective, cluster: Cluster) -> tuple[int, int]:
    """How many take part in one, and how many of them are near each other: on one host, or in one slice."""
    if found.transport == "dcn":
        return cluster.slices, 1
    places = [tuple(pair) for pair in found.pairs] or [tuple(group) for group in found.groups]
    if not places:
        return cluster.devices, min(cluster.devices, cluster.near_devices)
    if found.partitions == cluster.near_devices < cluster.devices:  # of a program that numbers one slice
        return len(places[0]), len(places[0])
    hosts = [collections.Counter(place // cluster.near_devices for place in each) for each in places]
    return len(places[0]), min(max(each.values()) for each in hosts)


def _link(found: FoundCollective, cluster: Cluster) -> str:
    size, near = _members(found, cluster)
    return "near" if size == near else "far"


def _wire_bytes(found: FoundCollective, cluster: Cluster) -> int:
    size, _ = _members(found, cluster)
    return sum(Collective(found.kind, (), size, elements, dtype).wire_bytes for dtype, elements in found.arrays)


def _seconds(found: FoundCollective, cluster: Cluster) -> float:
    """Latency, and the bytes at the rate of the slower link.

    What k devices of a host send together to another host shares their k connections to the network.
    """
    size, near = _members(found, cluster)
    sent, kind = _wire_bytes(found, cluster), cluster.accelerator
    one_way = found.kind == "collective-permute"
    at_near = sent / (cluster.neighbour_rate if one_way else cluster.near_rate) if near > 1 else 0.0
    if size == near:
        return kind.latency[0] + at_near
    return kind.latency[1] + max(at_near, sent / (near * kind.far))
