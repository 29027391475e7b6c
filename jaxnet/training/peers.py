"""What the processes of a run tell each other beside the gradients: the time that each needs, and what each has met."""

import contextlib
import itertools
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jax

from jaxnet.cluster import coordination
from jaxnet.cluster.agreement import all_gather_object
from jaxnet.cluster.start import Cluster
from jaxnet.data import Source
from jaxnet.report.goodput import RankTimes, Straggler, stragglers, times_from_json
from jaxnet.training.ledger import Ledger
from jaxnet.training.observer import Dispatched, Observer

# ---- What a process needs for a step by itself, beside what all wait for together ---------------------


_WINDOW = 1000  # steps of which the medians are taken
_FEWEST = 5  # of them, before there are any


class StepClock:
    """Takes a reading at the end of each step: three clocks, no more.

    The host's own time is what is left of a step when waiting for devices is taken away. Devices of a CPU compute on
    threads other than the loop's; while they wait for other ranks these sleep, so processor time tells how long they
    computed. Of other devices, and where MPI polls in those threads, nothing can be told: `computes` is False.
    """

    def __init__(self, *, computes: bool) -> None:
        self._computes = computes
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._before: tuple[float, float, float] | None = None

    def pause(self) -> None:
        """Exclude the time until the next step ends."""
        self._before = None

    def stepped(self, waited: float) -> None:
        """A step was dispatched; `waited`: seconds that the loop has waited for devices, since it began."""
        now = time.perf_counter(), waited, time.process_time() - time.thread_time()
        if self._before is not None:
            wall, waiting, busy = (value - before for value, before in zip(now, self._before, strict=True))
            self._steps.append((wall, wall - waiting, busy))
        self._before = now

    def times(self, rank: int) -> RankTimes | None:
        """The medians; None after a few steps only."""
        if len(self._steps) < _FEWEST:
            return None
        wall, host, busy = (statistics.median(values) for values in zip(*self._steps, strict=True))
        return RankTimes(rank, wall, host, busy if self._computes else None)


_EVERY_SECONDS = 5.0
_created = itertools.count()  # distinguishes one run of a process from the next; all create them in the same order


class PeerReport(NamedTuple):
    """What all processes have met.

    Attributes:
        stragglers: the ranks that hold the others up.
        damaged: how many damaged records were replaced; one that several processes met counts once.
    """

    stragglers: list[Straggler]
    damaged: int


class Peers(Observer):
    """One process's side of that. No device takes part, and no step waits for it.

    Attributes:
        own: the time that this one needs.

    Args:
        cluster: the processes.
        source: of this one's training examples; as `damaged` it may have the rows of those that it has replaced.
        ledger: where process 0 enters the times of all.
        say: takes a line for a person, once for each rank that becomes a straggler.
        platform: that of the devices; on CPUs a step's own time is what the process has computed.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        ledger: Ledger,
        say: Callable[[str], None],
        platform: str = "cpu",
    ) -> None:
        self.own = StepClock(computes=platform == "cpu" and cluster.mpi is None)
        self._cluster, self._source = cluster, source
        self._ledger, self._say = ledger, say
        self._folder = f"jaxnet/times/{next(_created)}"
        self._due = 0.0
        self._named: set[tuple[int, str]] = set()

    def after_step(self, dispatched: Dispatched) -> None:
        """Read the clocks."""
        self.own.stepped(dispatched.blocked)

    @contextlib.contextmanager
    def pause(self, what: str, kind: str) -> Iterator[None]:
        """The time inside belongs to no step."""
        yield
        self.own.pause()

    def on_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Share the times now and then."""
        if split == "train":
            self.share()

    def share(self) -> None:
        """Now and then tell the own times; process 0 looks at those that are there. With MPI all would have to meet."""
        alone = self._cluster.process_count == 1 or self._cluster.mpi is not None
        if alone or time.monotonic() < self._due or (own := self._times()) is None:
            return
        self._due = time.monotonic() + _EVERY_SECONDS
        with suppress(jax.errors.JaxRuntimeError):  # the service has gone: others will say why
            coordination.republish(f"{self._folder}/{own.rank}", json.dumps(own._asdict()))
            if own.rank == 0:
                told = coordination.read_all(self._folder).values()
                self._compare(times_from_json([json.loads(text) for text in told]))

    def gather(self) -> PeerReport:
        """What all have to say. All processes call this, at the same place."""
        times = self._times()
        damaged = list(getattr(self._source, "damaged", ()))  # at once: threads that read may add to it
        own = {"times": [] if times is None else [times._asdict()], "damaged": damaged}
        given = all_gather_object(self._cluster, own, about="what it has met")
        slow = self._compare(times_from_json([each for told in given for each in told["times"]]))
        return PeerReport(slow, len({row for told in given for row in told["damaged"]}))

    def _times(self) -> RankTimes | None:
        return self.own.times(self._cluster.process_index)

    def _compare(self, times: Sequence[RankTimes]) -> list[Straggler]:
        self._ledger.compared(times)
        found = stragglers(times)
        for each in found:
            if (each.rank, each.part) not in self._named:
                self._say(str(each))
        self._named |= {(each.rank, each.part) for each in found}
        return found
