"""Measure TCP between every pair of hosts, at the addresses that collectives use: who is cut off, who is slow.

A collective hangs where two hosts cannot reach each other, or fails without naming them, and it is as fast as the
slowest link. So one process of each host measures with one of each other, in rounds in which each host is in one pair.
"""

import secrets
import socket
import statistics
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from jaxnet.cluster.messages import Door, send, take
from jaxnet.operations.doctor.finding import Finding, failed, ok, skipped
from jaxnet.operations.doctor.waiting import Talk

# ---- All pairs -----------------------------------------------------------------------------------------

_PAIR_SECONDS = 6.0  # without an answer, after which a pair gives up
_MOST_ROUNDS = 31  # of more than 32 hosts, each is measured with 31 others
_EXCHANGE_SECONDS = 20.0  # for all that a pair sends


class Link(NamedTuple):
    """What rank `sender` measured when it sent to rank `receiver`, or the `problem` that prevented it."""

    sender: int
    receiver: int
    round_trip: float
    rate: float
    problem: str


def rounds(players: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which nobody is in two pairs (the circle method).

    >>> rounds([0, 1, 2])
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    circle: list[int | None] = [*players, *[None] * (len(players) % 2)]
    half, schedule = len(circle) // 2, []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        schedule.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return schedule


def measure_links(talk: Talk, host: str, address: str) -> tuple[list[Link], dict[int, str]]:
    """Measure all links; return them, and the host's name by measuring rank. Every rank calls this.

    `address` is where other hosts reach this rank. Ranks with the same `host` and `address` share a host.
    """
    with closing(_listen(address)) as server, Door(server, f"rank {talk.rank}") as door:
        own = {"host": host, "address": address, "port": server.getsockname()[1], "nonce": secrets.token_hex(8)}
        there = talk.gather("ports", own)
        leaders = leaders_of([(entry["host"], entry["address"]) for entry in there])
        found: list[Link] = []
        for number, pairs in enumerate(rounds(leaders)[:_MOST_ROUNDS]):
            pair = next((pair for pair in pairs if talk.rank in pair), None)
            link = None if pair is None else _link(talk.rank, pair, door, there)
            found += [Link(*given) for given in talk.gather(f"link round {number}", link) if given is not None]
    return found, {rank: there[rank]["host"] for rank in leaders}


def leaders_of(hosts: Sequence[tuple[str, str]]) -> list[int]:
    """The first rank of each host.

    >>> leaders_of([("a", "10.0.0.1"), ("a", "10.0.0.1"), ("b", "10.0.0.2")])
    [0, 2]
    """
    return [rank for rank, host in enumerate(hosts) if hosts.index(host) == rank]


def _listen(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family)


def _link(rank: int, pair: tuple[int, int], door: Door, there: Sequence[Mapping[str, str]]) -> Link:
    caller, called = pair
    other = called if rank == caller else caller
    hello: dict[str, str | int] = {"rank": caller, "nonce": there[called]["nonce"]}
    try:
        with _call(there[called], hello) if rank == caller else _await(door, hello) as peer:
            sent = measure(peer, rank == called)  # the one that was called begins, once it knows its caller
    except OSError as error:
        sent = Sent(0.0, 0.0)
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        return Link(rank, other, *sent, reason)
    return Link(rank, other, *sent, "")


def _call(called: Mapping[str, str], hello: Mapping[str, str | int]) -> socket.socket:
    peer = socket.create_connection((called["address"], int(called["port"])), timeout=_PAIR_SECONDS / 2)
    send(peer, dict(hello), time.monotonic() + _PAIR_SECONDS / 2)
    return peer


def _await(door: Door, hello: Mapping[str, str | int]) -> socket.socket:
    """The next caller that says `hello`. Others, such as port scanners, are dropped."""
    give_up = time.monotonic() + _PAIR_SECONDS
    while caller := door.next(give_up):
        if caller.message == hello:
            return caller.peer
        door.drop(caller, "it is not the rank to measure with")
    raise TimeoutError


# ---- One connection ------------------------------------------------------------------------------------


_LENGTH = struct.Struct("!Q")
_PINGS = 8
_PROBE = 64 * 1024
_TARGET_SECONDS = 0.15  # of a transfer that is timed
_MOST = 32 << 20
_WIRE_TRIES = 2
_CHUNK = 1 << 20


class Sent(NamedTuple):
    """What one end measured: seconds for a byte there and back, and bits a second of what it sent."""

    round_trip: float
    rate: float


def measure(peer: socket.socket, first: bool) -> Sent:
    """Measure with the other end, which calls this with the opposite `first`; OSError when that takes too long.

    The ends send in turn, because both ways at once would compete for the CPU.
    """
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    until = time.monotonic() + _EXCHANGE_SECONDS
    if first:
        found = _send(peer, until)
        _receive(peer, until)
    else:
        _receive(peer, until)
        found = _send(peer, until)
    return found


def _send(peer: socket.socket, until: float) -> Sent:
    round_trip = min(_timed(peer, 1, until) for _ in range(_PINGS))
    per_second = _PROBE / _there(_timed(peer, _PROBE, until), round_trip)
    # The short transfer only sets the size of those that count: it may pass in one burst, or wait for TCP's window.
    size = max(_PROBE, min(_MOST, int(per_second * _TARGET_SECONDS)))
    taken = _there(min(_timed(peer, size, until) for _ in range(_WIRE_TRIES)), round_trip)
    peer.sendall(_LENGTH.pack(0))
    return Sent(round_trip, size * 8 / taken)


def _there(taken: float, round_trip: float) -> float:
    """The seconds of a transfer without those of its answer, which are half of a `round_trip`.

    The transfer has a round trip in it. Where it took less than every ping, a busy machine held the pings up.

    >>> _there(1.0, 0.2), _there(0.1, 0.2)
    (0.9, 0.05)
    """
    return taken - min(taken, round_trip) / 2


def _timed(peer: socket.socket, size: int, until: float) -> float:
    payload = bytes(size)
    started = time.perf_counter()
    peer.settimeout(max(_soon(until) - time.monotonic(), 0.001))
    peer.sendall(_LENGTH.pack(size))
    peer.sendall(payload)
    take(peer, 1, _soon(until))
    return time.perf_counter() - started


def _receive(peer: socket.socket, until: float) -> None:
    while size := _LENGTH.unpack(take(peer, _LENGTH.size, _soon(until)))[0]:
        if size > _MOST:
            raise OSError("it is not a rank of this job")
        while size:
            size -= len(take(peer, min(size, _CHUNK), _soon(until)))
        peer.sendall(b"!")


def _soon(until: float) -> float:
    """When a piece is overdue."""
    return min(until, time.monotonic() + _PAIR_SECONDS)


# ---- Judging the links ---------------------------------------------------------------------------------


_SLOW = 1 / 3
_ENOUGH = 0.8  # of the expected rate; headers of TCP/IP and a busy machine take the rest
_OPEN = (
    "open all TCP ports between the hosts, since collectives listen on any; where a host has several networks,"
    " name one with JAXNET_NETWORK_INTERFACE"
)
_SLOW_CURE = "look at the cable, the switch's port and `ethtool` there, or leave that host out"


def check_links(links: Sequence[Link], hosts: Mapping[int, str], expected: int | None) -> list[Finding]:
    """Judge the `links` between `hosts` (names by rank). `expected` is the bits a second that each should have.

    A host is slow when the best rate at which it sends to any other, or receives, is under a third of the median
    host's (of two hosts, the faster one's). The best rate counts so that one bad cable does not accuse two hosts.
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
    """A rate as people read it.

    >>> megabits(9.4e8)
    '940 Mbit/s'
    """
    return f"{rate / 1e6:,.0f} Mbit/s"
