"""Processes meet before JAX starts; here they are threads of one process, on loopback."""

import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from jaxnet.cluster import messages, rendezvous
from jaxnet.cluster.addresses import Address
from jaxnet.cluster.job_token import new_nonce, proof
from jaxnet.cluster.rendezvous import meet
from jaxnet.errors import InputError
from jaxnet.operations.launchers.free_port import free_port


@pytest.fixture
def address():
    return Address("127.0.0.1", free_port())


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


def hello(**said):
    return json.dumps(said).encode() + b"\n"


STRANGERS = {
    "a health check": b"",
    "a blank line": b"\n",
    "HTTP": b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "NUL": bytes(4096),
    "NUL after a greeting": b'{"index": 1, "count": 3}\0\n',
    "UTF-16": '{"index": 1, "count": 3}\n'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"index": 1, "count": 3}\n',
    "no object": b"[1, 3]\n",
    "nested": b"[" * 900 + b"\n",
    "nested deeply": b"[" * 60000 + b"\n",
    "long": b" " * (1 << 20) + b"\n",
    "two lines": hello(index=1, count=3) * 2,
    "no names": b"{}\n",
    "texts": hello(index="1", count="3"),
    "lists": hello(index=[1], count={"3": 3}),
    "true is no number": b'{"index": true, "count": 3}\n',
    "the count is true": b'{"index": 1, "count": true}\n',
    "floats": b'{"index": 1.0, "count": 3.0}\n',
    "NaN": b'{"index": NaN, "count": 3}\n',
    "beyond all limits": b'{"index": 1e999, "count": 3}\n',
    "huge": b'{"index": ' + b"9" * 900 + b', "count": 3}\n',
    "beyond the last": hello(index=3, count=3),
    "rank 0": hello(index=0, count=3),
    "negative": hello(index=-1, count=3),
    "a negative count": hello(index=1, count=-3),
    "a name twice": b'{"index": 7, "index": 1, "count": 3}\n',
    "no token here": hello(index=1, count=3, nonce="", proof=""),
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.usefixtures("jax_after")
def test_strangers_on_the_port_do_no_harm(address, pool, capsys, monkeypatch, words):
    monkeypatch.setattr(messages, "FIRST_WORD_SECONDS", 0.5)
    host = pool.submit(meet, address, address, 0, 3, 30)
    with connected(address) as stranger:
        say(stranger, words)
        if words:
            hangs_up(stranger)
        guests = [pool.submit(meet, address, address, index, 3, 30) for index in (1, 2)]
        assert [outcome(future) for future in (host, *guests)] == ["127.0.0.1"] * 3
    assert ("rank 0 dropped a caller from 127.0.0.1 (" in capsys.readouterr().err) == bool(words)


def reset(stranger):
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


def one_byte(stranger):
    stranger.sendall(b"{")


def half_closed(stranger):
    stranger.shutdown(socket.SHUT_WR)


def half_closed_after_greeting(stranger):
    stranger.sendall(hello(index=1, count=3))
    stranger.shutdown(socket.SHUT_WR)


def reset_after_greeting(stranger):
    stranger.sendall(hello(index=1, count=3))
    reset(stranger)


def nothing(stranger):
    pass


@pytest.mark.parametrize(
    "does", [nothing, one_byte, half_closed, half_closed_after_greeting, reset, reset_after_greeting]
)
@pytest.mark.usefixtures("jax_after")
def test_strangers_do_not_hold_up_each_other_or_the_ranks(address, pool, does):
    # More of them than the ranks would wait for, one after the other.
    host = pool.submit(meet, address, address, 0, 3, 30)
    strangers = [connected(address) for _ in range(12)]
    for stranger in strangers:
        does(stranger)
    guests = [pool.submit(meet, address, address, index, 3, 30) for index in (1, 2)]
    assert [outcome(future) for future in (host, *guests)] == ["127.0.0.1"] * 3
    for stranger in strangers:
        stranger.close()


def test_callers_without_end_do_not_stretch_the_limit(address, pool):
    host, over = pool.submit(meet, address, address, 0, 2, 1), threading.Event()

    def call_on():
        while not over.is_set():
            with connected(address, host):
                pass

    pool.submit(call_on)
    try:
        message = outcome(host)
    finally:
        over.set()
    assert message.startswith("rank 1 of 2 did not call rank 0")
    assert "; callers that were dropped: " in message
    assert message.endswith("the last 127.0.0.1 (it hung up without a word)")


@pytest.mark.usefixtures("jax_after")
def test_a_byte_now_and_then_does_not_stretch_the_limit(address, pool, monkeypatch, capsys):
    monkeypatch.setattr(messages, "FIRST_WORD_SECONDS", 0.5)
    host, sent = pool.submit(meet, address, address, 0, 2, 30), 0
    with connected(address) as stranger:
        stranger.settimeout(0.05)
        while sent == 0 or not let_go(stranger):
            say(stranger, b" ")
            sent += 1
            assert sent < 400
        guest = pool.submit(meet, address, address, 1, 2, 30)
        assert [outcome(host), outcome(guest)] == ["127.0.0.1", "127.0.0.1"]
    assert "127.0.0.1 (it did not finish its line in time: b' " in capsys.readouterr().err


@pytest.mark.usefixtures("jax_after")
def test_of_very_many_callers_the_oldest_is_dropped(address, pool, monkeypatch, capsys):
    monkeypatch.setattr(messages, "_MOST_WAITING", 4)
    host = pool.submit(meet, address, address, 0, 2, 30)
    strangers = [connected(address) for _ in range(20)]
    guest = pool.submit(meet, address, address, 1, 2, 30)
    assert [outcome(host), outcome(guest)] == ["127.0.0.1", "127.0.0.1"]
    assert "too many call at once" in capsys.readouterr().err
    for stranger in strangers:
        stranger.close()


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


# ---- Something else in place of rank 0 -----------------------------------------------------------------

ANSWERS = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n", r"it said b'HTTP/1.1 400 Bad Request\\r'"),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", "it said b'SSH-2.0"),
    "not UTF-8": (b"\xff\xfe\n", "it said b"),
    "nested deeply": (b"[" * 60000 + b"\n", r"it said b'\[\["),
    "enormous": (b'{"error": "' + b"x" * (1 << 20) + b'"}\n', "it said more than 65536 bytes: b"),
    "two lines": (b'{"address": "127.0.0.1"}\n{}\n', "it said more than one line: b"),
    "no names": (b"{}\n", "it said {}"),
    "null": (b'{"error": null}\n', "its 'error' is None"),
    "an error that is a number": (b'{"error": 5}\n', "its 'error' is 5"),
    "an address that is a list": (b'{"address": ["127.0.0.1"]}\n', "it said b"),
    "an address that is none": (b'{"address": "node1; reboot"}\n', "it said that its address is 'node1; reboot'"),
    "a name twice": (b'{"address": "127.0.0.1", "address": "10.0.0.1"}\n', "it said b"),
}


@pytest.mark.parametrize(("answer", "problem"), ANSWERS.values(), ids=ANSWERS)
def test_a_stranger_in_place_of_rank_0(address, pool, answer, problem):
    with answering(address, pool, answer), pytest.raises(InputError, match=problem) as caught:
        meet(address, address, 1, 2, 0.2)
    assert str(caught.value).startswith(f"rank 1 on {socket.gethostname()} could not reach rank 0 at {address} for")
    assert "what answers there is not rank 0 of this job; end it, or give another port" in str(caught.value)


def test_a_stranger_that_does_not_finish(address, pool, monkeypatch):
    monkeypatch.setattr(rendezvous, "FIRST_WORD_SECONDS", 0.2)
    problem = r"it did not finish its line in time: b'{\"a'\): what answers there is not rank 0"
    with answering(address, pool, b'{"a'), pytest.raises(InputError, match=problem):
        meet(address, address, 1, 2, 0.3)


def test_what_takes_the_call_and_says_nothing(address, monkeypatch):
    monkeypatch.setattr(rendezvous, "FIRST_WORD_SECONDS", 0.2)
    with (
        socket.create_server(address),
        pytest.raises(InputError, match=r"\(it said nothing\): does rank 0 run there"),
    ):
        meet(address, address, 1, 2, 0.3)


def test_an_answer_cannot_steer_the_terminal(address, pool):
    answer = json.dumps({"error": "\x1b[2Jall is well\r\n" + "x" * 20000}).encode() + b"\n"
    with answering(address, pool, answer), pytest.raises(InputError) as caught:
        meet(address, address, 1, 2, 30)
    assert str(caught.value).startswith(r"\x1b[2Jall is well\r\nxxx")
    assert len(str(caught.value)) < 10000


def test_nobody_listens_after_the_start(address, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LONGEST_SERVICE_SECONDS", 0.1)
    guest = rendezvous._Guest(address, 1, 2, 0.0, 0.0, None)
    with pytest.raises(InputError, match=r"all had come to rank 0 at .*, and then JAX did not listen there"):
        guest._await_service()


# ---- A token -------------------------------------------------------------------------------------------

TOKEN, ANOTHER = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"


@pytest.mark.usefixtures("jax_after")
def test_ranks_with_the_same_token_meet(address, pool):
    futures = [pool.submit(meet, address, address, index, 3, 30, TOKEN) for index in range(3)]
    assert [outcome(future) for future in futures] == ["127.0.0.1"] * 3


def test_ranks_with_the_same_token_are_told_what_is_wrong(address, pool):
    host = pool.submit(meet, address, address, 0, 4, 30, TOKEN)
    guest = pool.submit(meet, address, address, 2, 3, 30, TOKEN)
    assert outcome(host) == outcome(guest) == "rank 2 was told of 3 processes, but rank 0 of 4"


def greeting(token, index, count, first_nonce, **other):
    said = index, count, first_nonce
    proven = dict(zip(("index", "count", "nonce"), said, strict=True), proof=proof(token, "guest", *said))
    return hello(**proven | other)


OTHERS = {
    "no token": hello(index=1, count=3),
    "another count": hello(index=1, count=9),
    "another token": greeting(ANOTHER, 1, 3, new_nonce()),
    "a proof of something else": greeting(TOKEN, 1, 3, new_nonce(), nonce=new_nonce()),
    "a proof that is no text": greeting(TOKEN, 1, 3, new_nonce(), proof=True),
    "a proof in other letters": greeting(TOKEN, 1, 3, new_nonce(), proof="\u00e9\ud800"),
    "a nonce that is no text": greeting(TOKEN, 1, 3, 5),
}


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
@pytest.mark.usefixtures("jax_after")
def test_who_does_not_have_the_token_is_no_rank(address, pool, words):
    host = pool.submit(meet, address, address, 0, 3, 30, TOKEN)
    with connected(address) as stranger:
        say(stranger, words)
        hangs_up(stranger, half=True)
        guests = [pool.submit(meet, address, address, index, 3, 30, TOKEN) for index in (1, 2)]
        assert [outcome(future) for future in (host, *guests)] == ["127.0.0.1"] * 3


@pytest.mark.usefixtures("jax_after")
def test_a_greeting_that_was_overheard_is_no_greeting(address, pool, capsys):
    host = pool.submit(meet, address, address, 0, 3, 30, TOKEN)
    words = greeting(TOKEN, 1, 3, new_nonce())
    with connected(address) as first:
        say(first, words)
        with connected(address) as second:
            say(second, words)
            hangs_up(second)
    guests = [pool.submit(meet, address, address, index, 3, 30, TOKEN) for index in (1, 2)]
    assert [outcome(future) for future in (host, *guests)] == ["127.0.0.1"] * 3
    assert "it repeated what a rank had said before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of_host", "of_guest", "problem"),
    [
        (TOKEN, None, "rank 0 has a JAXNET_JOB_TOKEN, and rank 1 has none: give all processes the same"),
        (None, TOKEN, "rank 1 has a JAXNET_JOB_TOKEN, and rank 0 has none: give all processes the same"),
        (TOKEN, ANOTHER, "rank 1 has another JAXNET_JOB_TOKEN than rank 0: give all processes the same"),
    ],
    ids=["the guest has none", "the host has none", "two tokens"],
)
def test_both_say_that_their_tokens_differ(address, pool, of_host, of_guest, problem):
    host = pool.submit(meet, address, address, 0, 2, 0.9, of_host)
    guest = outcome(pool.submit(meet, address, address, 1, 2, 0.6, of_guest))
    assert problem in guest
    assert problem in outcome(host)
    if of_guest:  # it cannot know that rank 0 of its own job says this
        assert "it does not have the JAXNET_JOB_TOKEN of this job, and said " in guest


@pytest.mark.parametrize(
    "answer",
    [{"address": "127.0.0.1"}, {"error": "no"}, {"address": "127.0.0.1", "proof": "é"}],
    ids=["no proof", "an error", "no ASCII"],
)
def test_an_answer_without_the_token_is_none(address, pool, answer):
    with (
        answering(address, pool, hello(**answer)),
        pytest.raises(InputError, match="does not have the JAXNET_JOB_TOKEN"),
    ):
        meet(address, address, 1, 2, 0.2, TOKEN)


# ---- Nothing there -------------------------------------------------------------------------------------


def test_nobody_there(address):
    with pytest.raises(InputError) as caught:
        meet(address, address, 1, 2, 0.5)
    message = str(caught.value)
    assert f"rank 1 on {socket.gethostname()} could not reach rank 0 at {address}" in message
    assert "connection refused" in message
    assert "127.0.0.1 resolves to loopback on this host: with several hosts give an address" in message


@pytest.mark.parametrize("name", ["no-such-host.invalid", "node..1", "n" * 64])
def test_a_name_that_does_not_resolve(name):
    nowhere = Address(name, 1234)
    with pytest.raises(InputError, match=f"rank 1 on .* cannot resolve the coordinator's name '{name}'"):
        meet(nowhere, nowhere, 1, 2, 0.5)


def test_a_port_in_use(address):
    with (
        socket.create_server(address),
        pytest.raises(InputError, match=f"cannot listen on port {address.port}: .*in use"),
    ):
        meet(address, address, 0, 2, 0.5)


def connected(address, until=None):
    """A connection to rank 0, once it listens; of no use when the future `until` is done."""
    while True:
        try:
            return socket.create_connection(address, timeout=30)
        except ConnectionError:
            if until is not None and until.done():
                return socket.socket()


def say(to, words):
    with suppress(ConnectionError):  # the other end had enough before all was sent
        to.sendall(words)


def hangs_up(stranger, half=False):
    """Waits until rank 0 has let go; `half`: or has said why."""
    try:
        while said := stranger.recv(1000):
            if half:
                return
    except ConnectionError:
        return
    assert said == b""


def let_go(stranger):
    """Whether rank 0 ends the connection before the time limit of the socket."""
    try:
        return stranger.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


class answering:
    """Something on the port that says `answer` to each caller and waits for it to hang up."""

    def __init__(self, address, pool, answer):
        self._server, self._answer = socket.create_server(address), answer
        self._serving = pool.submit(self._serve)

    def _serve(self):
        while True:
            try:
                caller = self._server.accept()[0]
            except OSError:
                return
            with caller:
                caller.recv(1000)
                say(caller, self._answer)
                hangs_up(caller)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._serving.result(30)
