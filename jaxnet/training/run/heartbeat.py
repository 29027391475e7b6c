"""Each rank says now and then what it does, so that the others can name the one for which they wait."""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress

import jax

from jaxnet.cluster import coordination
from jaxnet.cluster.start import Cluster, joined

COMPILING = "compiling"
_LONGEST_SECONDS = 5.0
_ALONE = "this process waits for nobody else"


class PeerHeartbeat:
    """Publishes what `said` gives (a step and what is done) through the coordination service, from a thread of its own.

    Where the ranks are not joined by JAX, it does nothing.
    """

    def __init__(self, said: Callable[[], tuple[int, str]], seconds: float) -> None:
        self._said, self._seconds = said, min(seconds, _LONGEST_SECONDS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat to peers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Say nothing more; a service that does not answer is not waited for."""
        self._stopped.set()
        self._thread.join(self._seconds)

    def missing(self, step: int) -> str | None:
        """Names the ranks that are silent or behind `step`, which takes a few beats; None if one of them compiles."""
        if (cluster := _joined()) is None:
            return _ALONE
        answers: list[dict[str, str]] = []
        reader = threading.Thread(target=self._read_twice, args=[answers], daemon=True)
        reader.start()
        reader.join(6 * self._seconds)
        if len(answers) < 2:
            return "rank 0, through which ranks talk, does not answer"
        return named_missing(answers[0], answers[1], cluster.process_index, cluster.process_count, step)

    def _read_twice(self, answers: list[dict[str, str]]) -> None:
        try:
            answers.append(coordination.read_all("jaxnet/heartbeat"))
            self._stopped.wait(3 * self._seconds)
            answers.append(coordination.read_all("jaxnet/heartbeat"))
        except (jax.errors.JaxRuntimeError, AssertionError):
            pass  # rank 0 has gone

    def _beat(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(self._seconds):
                return
            if (cluster := _joined()) is None:
                continue  # JAX ends a process that calls the service before it has joined
            step, what = self._said()
            with suppress(jax.errors.JaxRuntimeError, AssertionError):  # the service is not there any more
                coordination.republish(f"jaxnet/heartbeat/{cluster.process_index}", f"{number} {step} {what}")


def _joined() -> Cluster | None:
    cluster = joined()
    return None if cluster is None or cluster.process_count == 1 or cluster.ranks is not None else cluster


def named_missing(before: dict[str, str], after: dict[str, str], own: int, count: int, step: int) -> str | None:
    """What two readings of all heartbeats, some beats apart, say about the ranks beside `own`, which has done `step`.

    >>> named_missing({"1": "7 26 step 27"}, {"1": "7 26 step 27"}, 0, 2, 27)
    'rank 1 is silent (last heard of in step 27)'
    >>> named_missing({"1": "7 26 step 27"}, {"1": "9 26 step 27"}, 0, 2, 27)
    'rank 1 is still in step 27'
    >>> named_missing({"1": "7 26 compiling"}, {"1": "9 26 compiling"}, 0, 2, 27) is None
    True
    """
    problems = []
    for rank in (rank for rank in range(count) if rank != own):
        now = after.get(str(rank))
        if now is None:
            problems.append(f"rank {rank} has not been heard of")
            continue
        _, done, what = now.split(" ", 2)
        if now == before.get(str(rank)):
            problems.append(f"rank {rank} is silent (last heard of in {what})")
        elif what == COMPILING:
            return None
        elif int(done) < step:
            problems.append(f"rank {rank} is still in {what}")
    return "; ".join(problems) or "all ranks are alive and as far as this one"
