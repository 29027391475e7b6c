"""What the processes of a run tell each other beside the gradients: the time that each needs, and what each has met."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import jax

from jaxnet.cluster import coordination
from jaxnet.cluster.agreement import given_by_all
from jaxnet.cluster.start import Cluster
from jaxnet.data import Source
from jaxnet.report.stragglers import RankTimes, Straggler, stragglers, times_from_json
from jaxnet.training.run.ledger import Ledger
from jaxnet.training.run.own_time import OwnTime

_EVERY_SECONDS = 5.0
_created = itertools.count()  # distinguishes one run of a process from the next; all create them in the same order


class Met(NamedTuple):
    """What all processes have met.

    Attributes:
        stragglers: the ranks that hold the others up.
        damaged: how many damaged records were replaced; one that several processes met counts once.
    """

    stragglers: list[Straggler]
    damaged: int


class Peers:
    """One process's side of that. No device takes part, and no step waits for it.

    Attributes:
        own: the time that this one needs.

    Args:
        cluster: the processes.
        source: of this one's training examples; as `damaged` it may have the rows of those that it has replaced.
        ledger: where process 0 enters the times of all.
        say: takes a line for a person, once for each rank that becomes a straggler.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        ledger: Ledger,
        say: Callable[[str], None],
    ) -> None:
        self.own = OwnTime(computes=jax.default_backend() == "cpu" and cluster.ranks is None)
        self._cluster, self._source = cluster, source
        self._ledger, self._say = ledger, say
        self._folder = f"jaxnet/times/{next(_created)}"
        self._due = 0.0
        self._named: set[tuple[int, str]] = set()

    def share(self) -> None:
        """Now and then tell the own times; process 0 looks at those that are there. With MPI all would have to meet."""
        alone = self._cluster.process_count == 1 or self._cluster.ranks is not None
        if alone or time.monotonic() < self._due or (own := self._times()) is None:
            return
        self._due = time.monotonic() + _EVERY_SECONDS
        with suppress(jax.errors.JaxRuntimeError):  # the service has gone: others will say why
            coordination.republish(f"{self._folder}/{own.rank}", json.dumps(own._asdict()))
            if own.rank == 0:
                told = coordination.read_all(self._folder).values()
                self._compare(times_from_json([json.loads(text) for text in told]))

    def gather(self) -> Met:
        """What all have to say. All processes call this, at the same place."""
        times = self._times()
        damaged = list(getattr(self._source, "damaged", ()))  # at once: threads that read may add to it
        own = {"times": [] if times is None else [times._asdict()], "damaged": damaged}
        given = given_by_all(self._cluster, own, about="what it has met")
        slow = self._compare(times_from_json([each for told in given for each in told["times"]]))
        return Met(slow, len({row for told in given for row in told["damaged"]}))

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
