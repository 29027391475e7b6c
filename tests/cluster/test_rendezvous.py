"""Processes meet before JAX starts; here they are threads of one process, on loopback."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxnet.cluster.addresses import Address
from jaxnet.cluster.rendezvous import meet
from jaxnet.errors import InputError


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address(*probe.getsockname())


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def outcome(future):
    error = future.exception(60)
    if isinstance(error, InputError):
        assert "\n" not in str(error)
        return str(error)
    return future.result()


@pytest.fixture
def jax_after(address, monkeypatch):
    """A listener where JAX's own service would be once rank 0 has been let go."""
    from jaxnet.cluster import rendezvous

    listeners = []
    gather = rendezvous._Host.gather

    def gather_then_listen(host):
        result = gather(host)
        listeners.append(socket.create_server(address))
        return result

    monkeypatch.setattr(rendezvous._Host, "gather", gather_then_listen)
    yield
    for listener in listeners:
        listener.close()


@pytest.mark.usefixtures("jax_after")
def test_all_meet_whoever_comes_first(address, pool):
    guests = [pool.submit(meet, address, address, index, 4, 30) for index in (3, 1)]
    host = pool.submit(meet, address, address, 0, 4, 30)
    guests.append(pool.submit(meet, address, address, 2, 4, 30))
    assert [outcome(future) for future in (host, *guests)] == ["127.0.0.1"] * 4


@pytest.mark.usefixtures("jax_after")
def test_strangers_on_the_port_do_no_harm(address, pool):
    host = pool.submit(meet, address, address, 0, 2, 30)
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"index": "x"}\n'):
        with connected(address) as stranger:
            stranger.sendall(words)
    guest = pool.submit(meet, address, address, 1, 2, 30)
    assert [outcome(host), outcome(guest)] == ["127.0.0.1", "127.0.0.1"]


def test_all_are_told_who_is_missing(address, pool):
    host = pool.submit(meet, address, address, 0, 5, 1)
    guest = pool.submit(meet, address, address, 2, 5, 30)
    assert outcome(host) == outcome(guest)
    assert outcome(host).startswith(f"ranks 1, 3-4 of 5 did not call rank 0 at {address} within 1 s")


def test_all_are_told_of_a_different_count(address, pool):
    host = pool.submit(meet, address, address, 0, 4, 30)
    guest = pool.submit(meet, address, address, 2, 3, 30)
    assert outcome(host) == outcome(guest) == "rank 2 was told of 3 processes, but rank 0 of 4"


def test_two_with_the_same_number(address, pool):
    host = pool.submit(meet, address, address, 0, 3, 30)
    with connected(address) as first:
        first.sendall(json.dumps({"index": 1, "count": 3}).encode() + b"\n")
        guest = pool.submit(meet, address, address, 1, 3, 30)
        problem = "two processes say that they are rank 1, on 127.0.0.1 and 127.0.0.1"
        assert outcome(host) == outcome(guest) == json.loads(first.makefile().readline())["error"] == problem


@pytest.mark.usefixtures("jax_after")
def test_one_that_calls_again_replaces_its_first_call(address, pool):
    host = pool.submit(meet, address, address, 0, 3, 30)
    with connected(address) as first:
        first.sendall(json.dumps({"index": 1, "count": 3}).encode() + b"\n")
    guests = [pool.submit(meet, address, address, index, 3, 30) for index in (1, 2)]
    assert [outcome(future) for future in (host, *guests)] == ["127.0.0.1"] * 3


def test_nobody_there(address):
    with pytest.raises(InputError) as caught:
        meet(address, address, 1, 2, 0.5)
    message = str(caught.value)
    assert f"rank 1 on {socket.gethostname()} could not reach rank 0 at {address}" in message
    assert "connection refused" in message
    assert "127.0.0.1 resolves to loopback on this host: with several hosts give an address" in message


def test_something_else_there(address):
    with socket.create_server(address), pytest.raises(InputError, match="could not reach rank 0"):
        meet(address, address, 1, 2, 0.5)


def test_a_name_that_does_not_resolve():
    nowhere = Address("no-such-host.invalid", 1234)
    with pytest.raises(InputError, match=r"rank 1 on .* cannot resolve the coordinator's name 'no-such-host.invalid'"):
        meet(nowhere, nowhere, 1, 2, 0.5)


def test_a_port_in_use(address):
    with (
        socket.create_server(address),
        pytest.raises(InputError, match=f"cannot listen on port {address.port}: .*in use"),
    ):
        meet(address, address, 0, 2, 0.5)


def connected(address):
    """A connection to rank 0, once it listens."""
    while True:
        try:
            return socket.create_connection(address, timeout=30)
        except ConnectionRefusedError:
            continue
