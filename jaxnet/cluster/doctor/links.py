"""Every pair of hosts by TCP, at the addresses where collectives will call: who is cut off, who is slow.

A process of each host measures with one of each other, in rounds in which every host is in one pair. A collective
would hang where two hosts cannot reach each other, or fail without their names, and is as fast as the slowest.
"""

import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from jaxnet.cluster.doctor.talk import Talk
from jaxnet.cluster.doctor.wire import Sent, measure, take

_PAIR_SECONDS = 6.0
_MOST_ROUNDS = 31  # on more hosts than 32, each is measured with 31 others
_NONCE = 16


class Link(NamedTuple):
    """What rank `sender` found when it sent to rank `receiver`; `problem` where it could not."""

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
    """All links between hosts, and the name of each measuring rank's host; every rank calls this.

    `address` is where other hosts reach this rank; processes with the same `host` and address share a host.
    """
    with closing(_listen(address)) as server:
        own = {"host": host, "address": address, "port": server.getsockname()[1], "nonce": secrets.token_hex(8)}
        there = talk.gather("ports", own)
        leaders = leaders_of([(entry["host"], entry["address"]) for entry in there])
        found: list[Link] = []
        for number, pairs in enumerate(rounds(leaders)[:_MOST_ROUNDS]):
            pair = next((pair for pair in pairs if talk.rank in pair), None)
            link = None if pair is None else _link(talk.rank, pair, server, there)
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


def _link(rank: int, pair: tuple[int, int], server: socket.socket, there: Sequence[Mapping[str, str]]) -> Link:
    caller, called = pair
    other = called if rank == caller else caller
    nonce = there[called]["nonce"].encode()
    try:
        peer = _call(there[called], nonce) if rank == caller else _await(server, nonce)
        with peer:
            peer.settimeout(_PAIR_SECONDS)
            sent = measure(peer, rank == caller)
    except OSError as error:
        sent = Sent(0.0, 0.0)
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        return Link(rank, other, *sent, reason)
    return Link(rank, other, *sent, "")


def _call(called: Mapping[str, str], nonce: bytes) -> socket.socket:
    peer = socket.create_connection((called["address"], int(called["port"])), timeout=_PAIR_SECONDS / 2)
    peer.sendall(nonce)
    return peer


def _await(server: socket.socket, nonce: bytes) -> socket.socket:
    """The next caller that knows `nonce`; others, such as port scanners, are sent away."""
    give_up = time.monotonic() + _PAIR_SECONDS
    while True:
        server.settimeout(max(give_up - time.monotonic(), 0.001))
        peer = server.accept()[0]
        try:
            peer.settimeout(1.0)
            if take(peer, _NONCE) == nonce:
                return peer
        except OSError:
            pass
        peer.close()
