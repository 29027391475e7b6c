"""Compare the clocks of the ranks.

A rank asks rank 0 for its time. The answer belongs to some moment between question and answer, so half of the time in
between bounds the error. Of several tries the fastest counts.
"""

import statistics
import time
from typing import NamedTuple

from jaxnet.operations.doctor.finding import Finding, failed, ok
from jaxnet.operations.doctor.waiting import Talk

_TRIES = 4
_MOST_SECONDS = 1.0  # NTP keeps hosts within hundredths
_CURE = "start NTP there (timedatectl set-ntp true): files, logs, certificates and Slurm's keys go by the clock"


class Offset(NamedTuple):
    """A clock that shows `ahead` seconds more than rank 0's, give or take `error`."""

    ahead: float
    error: float


def check_clocks(talk: Talk) -> Finding:
    """Compare all ranks' clocks with each other; every rank calls this."""
    if talk.rank == 0:
        _answer(talk)
        own = Offset(0.0, 0.0)
    else:
        own = min((_ask(talk, number) for number in range(_TRIES)), key=lambda offset: offset.error)
    return judge_clocks([Offset(*offset) for offset in talk.gather("clocks", own)])


def _ask(talk: Talk, number: int) -> Offset:
    key = f"clock/{talk.rank}/{number}"
    shown, started = time.time(), time.monotonic()
    talk.tell(f"{key}/asked", "")
    there = float(talk.await_told(f"{key}/shown", 0))
    half = (time.monotonic() - started) / 2
    return Offset(shown + half - there, half)


def _answer(talk: Talk) -> None:
    for rank in range(1, talk.count):
        for number in range(_TRIES):
            talk.await_told(f"clock/{rank}/{number}/asked", rank)
            talk.tell(f"clock/{rank}/{number}/shown", repr(time.time()))


def judge_clocks(offsets: list[Offset]) -> Finding:
    """Name the clocks that are over a second from the median one. Rank 0's may be the wrong one.

    >>> judge_clocks([Offset(0, 0), Offset(90.02, 0.01), Offset(0.001, 0.01)]).found
    "rank 1's clock is 90.0 s ahead of the others (give or take 0.0100 s)"
    """
    usual = statistics.median_low(offset.ahead for offset in offsets)
    wrong = {
        rank: offset for rank, offset in enumerate(offsets) if abs(offset.ahead - usual) - offset.error > _MOST_SECONDS
    }
    if wrong:
        return failed("clocks", "; ".join(_line(rank, offset, usual) for rank, offset in wrong.items()), _CURE)
    apart = max(offset.ahead for offset in offsets) - min(offset.ahead for offset in offsets)
    error = max(offset.error for offset in offsets)
    return ok("clocks", f"{apart:.4f} s apart at most, give or take {error:.4f} s")


def _line(rank: int, offset: Offset, usual: float) -> str:
    apart = offset.ahead - usual
    side = "ahead of" if apart > 0 else "behind"
    return f"rank {rank}'s clock is {abs(apart):.1f} s {side} the others (give or take {offset.error:.4f} s)"
