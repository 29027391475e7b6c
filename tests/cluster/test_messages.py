"""Messages over sockets: whatever comes, at whatever pace, is a message in time or an error in time."""

import errno
import json
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cluster import messages
from jaxnet.cluster.messages import (
    BadMessage,
    Door,
    Line,
    Silence,
    has_hung_up,
    parse_message,
    receive,
    send,
    take,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def soon():
    return time.monotonic() + 30


@given(st.dictionaries(st.text(), SCALARS))
def test_what_is_sent_is_received(message):
    left, right = socket.socketpair()
    with left, right:
        send(left, message, soon())
        assert receive(right, soon()) == message


@given(st.binary() | st.text().map(str.encode) | st.recursive(SCALARS, st.lists).map(lambda x: json.dumps(x).encode()))
def test_any_bytes_are_a_message_or_none(line):
    try:
        found = parse_message(line)
    except BadMessage as error:
        found = str(error)
    assert isinstance(found, dict) or (found.isprintable() and len(found) < 200)


NO_JSON = {
    "NaN": b'{"a": NaN}',
    "infinite": b'{"a": -Infinity}',
    "beyond all limits": b'{"a": 1e999}',
    "5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "a name twice": b'{"a": 1, "a": 1}',
    "a name twice inside": b'{"b": {"a": 1, "a": 2}}',
    "nested lists": b"[" * 60000,
    "nested objects": b'{"a":' * 20000,
    "a list inside": b'{"a": [1]}',
    "an object inside": b'{"a": {}}',
    "no UTF-8": b"\xff",
    "empty": b"",
    "null": b"null",
}


@pytest.mark.parametrize("line", NO_JSON.values(), ids=NO_JSON)
def test_what_python_would_read_and_json_is_not(line):
    with pytest.raises(BadMessage):
        parse_message(line)


def test_a_line_comes_in_pieces(ends):
    left, right = ends
    line = Line(right, soon(), 100)
    for piece in (b"", b'{"a"', b": 1", b"}"):
        left.sendall(piece)
        assert line.more(wait=False) is None
    left.sendall(b"\n")
    assert line.more(wait=True) == {"a": 1}


@pytest.mark.parametrize(
    ("said", "kind", "problem"),
    [
        (b"", Silence, "it hung up without a word"),
        (b'{"a"', BadMessage, "it did not finish its line before it hung up: b"),
        (b"x" * 101, BadMessage, "it said more than 100 bytes: b"),
        (b"{}\n{}\n", BadMessage, "it said more than one line: b"),
    ],
)
def test_no_message(ends, monkeypatch, said, kind, problem):
    monkeypatch.setattr(messages, "LONGEST", 100)
    left, right = ends
    left.sendall(said)
    left.shutdown(socket.SHUT_WR)
    with pytest.raises(BadMessage, match=problem) as caught:
        receive(right, soon())
    assert caught.type is kind


@pytest.mark.parametrize(
    "read", [lambda end: receive(end, 0.0), lambda end: take(end, 9, 0.0)], ids=["receive", "take"]
)
def test_nothing_is_waited_for_past_its_time(ends, read):
    left, right = ends
    left.sendall(b"half")
    with pytest.raises((BadMessage, TimeoutError)):
        read(right)


def test_who_hangs_up_or_speaks_again_has_gone(ends):
    left, right = ends
    assert not has_hung_up(right)
    left.sendall(b"x")
    assert has_hung_up(right)
    left.close()
    assert has_hung_up(right)


class FullServer:
    """A listening socket of a process that has as many open files as it may."""

    def __init__(self, server):
        self._server = server
        self.tries = 0

    def accept(self):
        self.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def __getattr__(self, name):
        return getattr(self._server, name)


def test_a_process_without_room_for_a_connection_drops_those_that_wait(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server, Door(server, "rank 0") as door:
        silent = [socket.create_connection(server.getsockname()) for _ in range(2)]
        while len(door._waiting) < 2:
            door.next(time.monotonic() + 0.01)
        another = socket.create_connection(server.getsockname())
        door.server = FullServer(server)
        door._ready.unregister(server)
        door._ready.register(door.server, 1)
        with pytest.raises(OSError, match="Too many open files"):
            door.next(soon())
        assert door.server.tries == 3
        assert "too many call at once" in capsys.readouterr().err
        for each in (*silent, another):
            each.close()


def test_the_lines_about_strangers_have_an_end(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server, Door(server, "rank 0") as door:
        for number in range(messages._MOST_LINES + 5):
            with socket.create_connection(server.getsockname()) as stranger:
                stranger.sendall(f"{number}\n".encode())
                while door.dropped <= number:
                    door.next(time.monotonic() + 0.01)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == messages._MOST_LINES + 1
    assert lines[0] == r"rank 0 dropped a caller from 127.0.0.1 (it said b'0')"
    assert lines[-1] == "rank 0 names no more of them"
