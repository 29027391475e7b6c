"""How `jaxnet doctor` measures and judges links between hosts."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cluster.messages import Door
from jaxnet.operations.doctor import links
from jaxnet.operations.doctor.finding import FAILED, OK, SKIPPED, ok
from jaxnet.operations.doctor.links import Link, check_links

MBIT = 1e6


@given(st.sets(st.integers(0, 40), min_size=1, max_size=12))
def test_rounds_hold_every_pair_once_and_nobody_twice(players):
    schedule = links.rounds(sorted(players))
    pairs = [pair for pairs in schedule for pair in pairs]
    assert sorted(pairs) == sorted((a, b) for a in players for b in players if a < b)
    for pairs in schedule:
        busy = [player for pair in pairs for player in pair]
        assert len(busy) == len(set(busy))
    assert len(schedule) <= len(players)


def test_two_ends_measure_one_connection(monkeypatch):
    monkeypatch.setattr(links, "_TARGET_SECONDS", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right = server.accept()[0]
    with left, right:
        there = []
        other = threading.Thread(target=lambda: there.append(links.measure(right, False)))
        other.start()
        here = links.measure(left, True)
        other.join()
    assert here.rate > 0
    assert there[0].rate > 0
    assert here.round_trip > 0


def test_pings_that_a_busy_machine_held_up_make_no_rate_negative(monkeypatch):
    taken = iter([*[5e-3] * links._PINGS, 1e-3, 2e-3, 2e-3])
    monkeypatch.setattr(links, "_MOST", links._PROBE)
    monkeypatch.setattr(links, "_timed", lambda peer, size, until: next(taken))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        sent = links._send(peer, until=0.0)
    assert sent.rate == pytest.approx(links._PROBE * 8 / 1e-3)


def hello(nonce="0123456789abcdef", rank=0):
    return {"rank": rank, "nonce": nonce}


@pytest.fixture
def door():
    with socket.create_server(("127.0.0.1", 0)) as server, Door(server, "rank 1") as door:
        yield door


@pytest.mark.parametrize("wrong", [hello("fedcba9876543210"), hello(rank=2), {}, {"nonce": None}])
def test_a_stranger_is_sent_away(door, wrong):
    called = {"address": "127.0.0.1", "port": door.server.getsockname()[1]}
    # More who say nothing than could be waited for, one after the other.
    silent = [socket.create_connection(door.server.getsockname()) for _ in range(20)]
    with links._call(called, wrong) as stranger, links._call(called, hello()) as known:
        with links._await(door, hello()) as peer:
            assert peer.getpeername() == known.getsockname()
        with pytest.raises(ConnectionResetError):
            stranger.recv(1)
    for each in silent:
        each.close()


def test_nobody_comes(door, monkeypatch):
    monkeypatch.setattr(links, "_PAIR_SECONDS", 0.05)
    with pytest.raises(TimeoutError):
        links._await(door, hello())


def test_a_peer_that_never_comes_to_an_end_is_given_up(door, monkeypatch):
    monkeypatch.setattr(links, "_EXCHANGE_SECONDS", 0.3)
    door.server.setblocking(True)
    slow, over = socket.create_connection(door.server.getsockname()), threading.Event()

    def ping():
        for _ in range(100):
            if over.wait(0.02):
                return
            slow.sendall(links._LENGTH.pack(1) + b"x")
        slow.shutdown(socket.SHUT_WR)  # it ends after all, for a measurement without a limit

    thread = threading.Thread(target=ping)
    thread.start()
    with slow, door.server.accept()[0] as peer:
        with pytest.raises(TimeoutError):
            links.measure(peer, False)
        over.set()
        thread.join()


def mesh(count, rate=lambda sender, receiver: 900 * MBIT):
    return [Link(a, b, 1e-4, rate(a, b), "") for a in range(count) for b in range(count) if a != b]


def hosts_of(count):
    return {rank: f"node{rank}" for rank in range(count)}


def test_links_that_are_alike():
    [reached, slow] = check_links(mesh(3), hosts_of(3), None)
    assert reached == ok(
        "links", "3 between 3 hosts: 900 Mbit/s to 900 Mbit/s each way, there and back 0.10 to 0.10 ms"
    )
    assert slow.status == OK
    assert [finding.status for finding in check_links([], {0: "node0"}, None)] == [SKIPPED]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_host_that_sends_slowly(count):
    found = check_links(mesh(count, lambda sender, _: (90 if sender == 1 else 900) * MBIT), hosts_of(count), None)
    [_, slow] = found
    assert slow.status == FAILED
    sender = "node1 (rank 1) sends at 90 Mbit/s, the median host at 900 Mbit/s"
    receiver = "node0 (rank 0) receives at 90 Mbit/s, the median host at 900 Mbit/s"
    # Of two hosts either may be the cause.
    assert slow.found == (f"{sender}; {receiver}" if count == 2 else sender)


def test_one_slow_cable_is_no_slow_host():
    rate = lambda *ends: (90 if set(ends) == {0, 1} else 900) * MBIT  # noqa: E731
    [_, slow, short] = check_links(mesh(3, rate), hosts_of(3), int(1e9))
    assert slow.status == OK
    assert short.found == (
        "wanted 1,000 Mbit/s: node0 (rank 0) to node1 (rank 1) 90 Mbit/s; node1 (rank 1) to node0 (rank 0) 90 Mbit/s"
    )
    assert check_links(mesh(3), hosts_of(3), int(1e9))[2].status == OK


def test_a_pair_that_is_cut_off():
    broken = [Link(0, 1, 0.0, 0.0, "no answer"), *(link for link in mesh(3) if {*link[:2]} != {0, 1})]
    [reached, slow] = check_links(broken, hosts_of(3), None)
    assert reached.found == "no connection between node0 (rank 0) and node1 (rank 1): no answer"
    assert slow.status == OK
