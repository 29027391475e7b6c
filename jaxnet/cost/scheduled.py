"""A compiled program's schedule in time: what its operations and collectives take at the published rates of a device.

A model, not a measurement. Operations run one after the other, each as long as its products or its bytes take at the
full rate, or, on a TPU, as its compiler says, where that is longer. A collective begins at its start, or when its link
is free; it has arrived when the bytes that a device must send have left at the full rate of the link. The device waits
for it at its done. What the device waits is exposed:

    compute   | product | product |............| update |
    near           | sum of a bucket           |                a part of one product is hidden behind the other

A TPU's links along different dims carry different collectives at the same time; `jaxnet.cost.links` has the rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxnet.comm import FoundCollective, collectives_in, programs_in, schedule
from jaxnet.cost.accelerators import Cluster
from jaxnet.cost.links import Load, Place, load, places_of
from jaxnet.cost.work import Counter, Work


class Span(NamedTuple):
    """Something that takes time.

    Attributes:
        name: the instruction's.
        track: 'compute', 'wait', or the link that is busy; see `jaxnet.cost.links.Load`.
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
        link: that it takes; several with a plus between them.
        bytes: that a device sends for it.
        begin: seconds from the begin of the step until its link is free for it.
        seconds: on its link.
        exposed: seconds for which the device waits for it.
        beside: what is computed between its start and its done.
    """

    found: FoundCollective
    link: str
    bytes: int
    begin: float
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


def modelled(hlo: str, cluster: Cluster, places: Sequence[Place] | None = None) -> Timeline:
    """The schedule of a program in time, on such devices.

    Args:
        hlo: `jax.jit(f).lower(...).compile().as_text()` of one program. A loop that holds collectives counts once.
        cluster: the devices that it was compiled for.
        places: of the mesh, see `places_of`; None: row by row.
    """
    [program] = programs_in(hlo)
    steps, collectives = schedule(program), collectives_in(hlo)
    counter, clock = Counter(program), _Clock()
    places = places_of(cluster) if places is None else places
    loads = {found.name: load(found, cluster, places) for found in collectives}
    begun = {found.start: found for found in collectives}
    ended = {found.done: found for found in collectives}
    parts = begun.keys() | ended.keys()
    began: dict[str, float] = {}
    waited: dict[str, float] = {}
    prefix = [Work()]
    for place, step in enumerate(steps):
        # 1. A collective whose start this is takes its link as soon as that is free.
        if found := begun.get(place):
            began[found.name] = clock.send(found.name, loads[found.name])
        # 2. An operation takes as long as its products, or its bytes.
        work = Work() if place in parts else counter.work(step)
        clock.compute(step.name, roofline(work, cluster))
        prefix.append(work)
        # 3. At its done the device waits for the collective.
        if found := ended.get(place):
            waited[found.name] = clock.wait(found.name)
    travels = []
    for found in collectives:
        beside = sum(prefix[found.start + 2 : found.done + 1], Work())
        taken, begin = loads[found.name], began[found.name]
        travels.append(
            Travel(found, "+".join(taken.links), taken.bytes, begin, taken.seconds, waited[found.name], beside)
        )
    return Timeline(tuple(travels), tuple(clock.spans), clock.now)


def roofline(work: Work, cluster: Cluster) -> float:
    """Seconds: the longest of the products at their rate, the bytes at that of memory, and the compiler's cycles."""
    kind = cluster.accelerator
    products = sum(count / kind.rate(dtype) for dtype, count in work.flops.items())
    cycles = work.cycles / kind.clock if kind.clock else 0.0
    return max(products, work.bytes / kind.memory_rate, cycles)


class _Clock:
    """The device's time, and how long each link is busy."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spans: list[Span] = []
        self._free: dict[str, float] = {}
        self._arrives: dict[str, float] = {}

    def compute(self, name: str, seconds: float) -> None:
        if seconds > 0:
            self.spans.append(Span(name, "compute", self.now, self.now + seconds))
            self.now += seconds

    def send(self, name: str, taken: Load) -> float:
        """When it begins: as soon as all its links are free."""
        begin = max(self.now, *(self._free.get(link, 0.0) for link in taken.links))
        end = begin + taken.seconds
        for link in taken.links:
            self._free[link] = end
            self.spans.append(Span(name, link, begin, end))
        self._arrives[name] = end
        return begin

    def wait(self, name: str) -> float:
        """Seconds of waiting for it now."""
        arrives = self._arrives[name]
        waited = max(0.0, arrives - self.now)
        if waited:
            self.spans.append(Span(name, "wait", self.now, arrives))
            self.now = arrives
        return waited
