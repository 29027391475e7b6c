"""What the measured links say: pairs that cannot talk, hosts that are slower than the others, rates that fall short."""

import statistics
from collections.abc import Mapping, Sequence

from jaxnet.cluster.doctor.finding import Finding, failed, ok, skipped
from jaxnet.cluster.doctor.links import Link

_SLOW = 1 / 3
_ENOUGH = 0.8  # of a link's nominal rate; TCP/IP's headers and a busy machine take the rest
_OPEN = (
    "let all TCP ports be open between the hosts, since collectives listen on any; where a host has several networks,"
    " name one with JAXNET_NETWORK_INTERFACE"
)
_SLOW_CURE = "look at the cable, the switch's port and `ethtool` there, or leave that host out"


def check_links(links: Sequence[Link], hosts: Mapping[int, str], expected: int | None) -> list[Finding]:
    """Judge the `links` between `hosts` (names by rank); `expected` bits a second, where the user says so.

    A host is slow when the best rate at which it sends to any other, or receives, is under a third of
    what the median host does (of two, the faster one).
    """
    if not links:
        return [skipped("links", "one host: nothing travels between hosts")]
    return [_reached(links, hosts), _slow(links, hosts), *([_short(links, hosts, expected)] if expected else [])]


def _reached(links: Sequence[Link], hosts: Mapping[int, str]) -> Finding:
    cut = [link for link in links if link.problem]
    if cut:
        parts = (f"{_host(link.sender, hosts)} and {_host(link.receiver, hosts)}: {link.problem}" for link in cut)
        return failed("links", f"no connection between {'; between '.join(parts)}", _OPEN)
    rates, trips = [link.rate for link in links], [link.round_trip for link in links]
    trip = f"there and back {min(trips) * 1e3:.2f} to {max(trips) * 1e3:.2f} ms"
    spread = f"{megabits(min(rates))} to {megabits(max(rates))}"
    return ok("links", f"{len(links) // 2} between {len(hosts)} hosts: {spread} each way, {trip}")


def _slow(links: Sequence[Link], hosts: Mapping[int, str]) -> Finding:
    good = [link for link in links if not link.problem]
    if not good:
        return skipped("slow hosts", "no link could be measured")
    slow = []
    for verb, rates in (("sends", _best(good, "sender")), ("receives", _best(good, "receiver"))):
        usual = statistics.median_high(rates.values())
        slow += [
            f"{_host(rank, hosts)} {verb} at {megabits(rate)}, the median host at {megabits(usual)}"
            for rank, rate in rates.items()
            if rate < _SLOW * usual
        ]
    if slow:
        return failed("slow hosts", "; ".join(slow), _SLOW_CURE)
    rank, rate = min(_best(good, "sender").items(), key=lambda item: item[1])
    return ok("slow hosts", f"none; the slowest is {_host(rank, hosts)}, which sends at {megabits(rate)}")


def _short(links: Sequence[Link], hosts: Mapping[int, str], expected: int) -> Finding:
    short = [link for link in links if not link.problem and link.rate < _ENOUGH * expected]
    if short:
        parts = (
            f"{_host(link.sender, hosts)} to {_host(link.receiver, hosts)} {megabits(link.rate)}" for link in short
        )
        return failed("expected rate", f"wanted {megabits(expected)}: {'; '.join(parts)}", _SLOW_CURE)
    return ok("expected rate", f"every link has at least 80 % of {megabits(expected)}")


def _best(links: Sequence[Link], end: str) -> dict[int, float]:
    best: dict[int, float] = {}
    for link in links:
        rank: int = getattr(link, end)
        best[rank] = max(best.get(rank, 0.0), link.rate)
    return best


def _host(rank: int, hosts: Mapping[int, str]) -> str:
    return f"{hosts[rank]} (rank {rank})"


def megabits(rate: float) -> str:
    """A rate for people.

    >>> megabits(9.4e8)
    '940 Mbit/s'
    """
    return f"{rate / 1e6:,.0f} Mbit/s"
