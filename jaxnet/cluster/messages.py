"""What ranks say to each other over sockets: one flat JSON object on one line, of bounded length, within a time limit.

Whoever reaches a port can send anything at any pace, and whatever holds an address can answer anything. So all that is
read from a socket is read here: nothing is waited for past its limit, and nothing is kept beyond its length.
"""

import errno
import json
import math
import selectors
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self, TypeVar

from jaxnet.errors import say

T = TypeVar("T", str, int)

LONGEST = 65536
"""Bytes of the longest message."""

_QUOTED = 60  # characters of what a stranger said, in a line about it


class BadMessage(Exception):
    """What came, or did not come, is no message; the text says what it is."""


class Silence(BadMessage):
    """The connection, or the time for it, ended before anything was said."""


def send(to: socket.socket, message: dict[str, Any], until: float) -> None:
    """Send a message by `until`, on the clock `time.monotonic`; if that fails, whoever waits for an answer says so."""
    with suppress(OSError):
        to.settimeout(_left(until))
        to.sendall(json.dumps(message).encode() + b"\n")


def receive(source: socket.socket, until: float) -> dict[str, Any]:
    """The one message of a connection, complete by `until`.

    Raises:
        BadMessage: something else came, or nothing.
    """
    line = Line(source, until, LONGEST)
    while (message := line.more(wait=True)) is None:
        pass
    return message


def take(source: socket.socket, size: int, until: float) -> bytes:
    """Exactly `size` bytes, complete by `until`; OSError if they do not come."""
    parts = []
    while size:
        part = _some(source, size, until)
        if not part:
            raise OSError("it hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_field(message: dict[str, Any], name: str, kind: type[T]) -> T:
    """An entry that must have exactly this type: `true` is no number, and no number is a text.

    Raises:
        BadMessage: it has another type, or is not there.

    >>> read_field({"index": 3}, "index", int)
    3
    """
    if name not in message:
        raise BadMessage(f"it said {_quoted(message)}")
    if type(value := message[name]) is not kind:
        raise BadMessage(f"its {name!r} is {_quoted(value)}")
    return value


def parse_message(line: bytes) -> dict[str, Any]:
    """One flat JSON object in UTF-8, without what Python reads beyond JSON and without a name that occurs twice.

    Raises:
        BadMessage: it is something else.

    >>> parse_message(b'{"index": 1}')
    {'index': 1}
    """
    try:
        message = json.loads(line.decode(), object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of 5,000 digits, [[[[...
        raise BadMessage(f"it said {_quoted(line)}") from None
    if not isinstance(message, dict) or any(isinstance(value, list | dict) for value in message.values()):
        raise BadMessage(f"it said {_quoted(line)}")
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number beyond all limits")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _quoted(value: object) -> str:
    return repr(value[:_QUOTED] if isinstance(value, bytes | str) else value)[: 2 * _QUOTED]


@dataclass
class Line:
    """A message that is on its way: complete by `until`, and at most `longest` bytes."""

    source: socket.socket
    until: float
    longest: int
    _said: bytes = b""

    def more(self, wait: bool) -> dict[str, Any] | None:
        """Take what has come, or `wait` for it; return the message once it is complete, else None.

        Raises:
            BadMessage: it is none, or is not complete in time.
        """
        try:
            piece = _some(self.source, self.longest + 1 - len(self._said), self.until if wait else 0.0)
        except TimeoutError:
            if time.monotonic() < self.until:
                return None
            raise self._broken_off("it said nothing", "in time") from None
        except OSError as error:
            reason = f"the connection broke: {(error.strerror or str(error)).lower()}"
            raise self._broken_off(reason, "before the connection broke") from None
        self._said += piece
        if b"\n" in piece:
            line, _, rest = self._said.partition(b"\n")
            if rest:
                raise BadMessage(f"it said more than one line: {_quoted(self._said)}")
            return parse_message(line)
        if len(self._said) > self.longest:
            raise BadMessage(f"it said more than {self.longest} bytes: {_quoted(self._said)}")
        if not piece:
            raise self._broken_off("it hung up without a word", "before it hung up")
        return None

    def _broken_off(self, nothing: str, when: str) -> BadMessage:
        if not self._said:
            return Silence(nothing)
        return BadMessage(f"it did not finish its line {when}: {_quoted(self._said)}")


def _some(source: socket.socket, size: int, until: float) -> bytes:
    """What is there, at most `size` bytes; b"" at the end. TimeoutError if nothing comes by `until`."""
    source.settimeout(_left(until))
    try:
        return source.recv(size)
    except BlockingIOError:
        raise TimeoutError from None


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)


def has_hung_up(peer: socket.socket, until: float = 0.0) -> bool:
    """Whether the other end, which has said all that it may, has closed by `until`, or has spoken again."""
    try:
        _some(peer, 1, until)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


# ---- Callers -------------------------------------------------------------------------------------------

FIRST_WORD_SECONDS = 5.0
"""How long a caller may take to say who it is."""

_LONGEST_FIRST_WORD = 1024
_MOST_WAITING = 256
_MOST_LINES = 20
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True)
class Caller:
    """Who has called and said one message.

    Attributes:
        peer: the connection.
        address: where the caller is.
        message: what it said.
    """

    peer: socket.socket
    address: str
    message: dict[str, Any]


@dataclass
class _Waiting:
    """A connection whose message has not come yet or, if it was `refused`, that has not ended yet."""

    peer: socket.socket
    address: str
    line: Line
    refused: bool = False


@dataclass
class Door:
    """Reads one message from each caller of a listening socket. Who has none to say is dropped, and named on stderr.

    All callers are read side by side, each for at most 5 s, so none can hold up another. Of very many, the one that
    has waited longest is dropped.

    Attributes:
        server: the listening socket.
        host: who listens, for the lines on stderr.
        dropped: how many callers were.
        last: the last of them, and why.
    """

    server: socket.socket
    host: str
    dropped: int = 0
    last: str = ""
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _named: set[tuple[str, str]] = field(default_factory=set)
    _ready: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __enter__(self) -> Self:
        self.server.setblocking(False)
        self._ready.register(self.server, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for waiting in list(self._waiting.values()):
            self._end(waiting)
        self._ready.close()

    def next(self, until: float) -> Caller | None:
        """The next caller that has said a message; None if there is none by `until`.

        Raises:
            OSError: this process can open no more connections, although none waits.
        """
        while (now := time.monotonic()) < until:
            due = [waiting for waiting in self._waiting.values() if waiting.line.until <= now]
            for waiting in due:
                if caller := self._read(waiting):
                    return caller
            first = min((waiting.line.until for waiting in self._waiting.values()), default=until)
            for key, _ in self._ready.select(_left(min(first, until))):
                if key.fileobj is self.server:
                    self._accept()
                elif key.fd in self._waiting and (caller := self._read(self._waiting[key.fd])):
                    return caller
        return None

    def drop(self, caller: Caller, why: str, answer: dict[str, Any] | None = None) -> None:
        """End the connection of a caller that should not have called; with an `answer`, once it has that."""
        self._name(caller.address, why)
        if answer is None:
            _reset(caller.peer)
            return
        send(caller.peer, answer, until=0.0)
        self._await(caller.peer, caller.address, refused=True)

    def _accept(self) -> None:
        try:
            peer, address = self.server.accept()
        except OSError as error:
            if error.errno not in _FULL:
                return  # it has gone again
            if not self._waiting:
                raise
            self._crowded_out()
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._crowded_out()
        self._await(peer, plain(address[0]), refused=False)

    def _await(self, peer: socket.socket, address: str, *, refused: bool) -> None:
        line = Line(peer, time.monotonic() + FIRST_WORD_SECONDS, _LONGEST_FIRST_WORD)
        self._waiting[peer.fileno()] = _Waiting(peer, address, line, refused)
        self._ready.register(peer, selectors.EVENT_READ)

    def _read(self, waiting: _Waiting) -> Caller | None:
        if waiting.refused:
            self._end(waiting)
            return None
        try:
            message = waiting.line.more(wait=False)
        except BadMessage as problem:
            self._name(waiting.address, str(problem))
            self._end(waiting)
            return None
        if message is None:
            return None
        self._forget(waiting)
        return Caller(waiting.peer, waiting.address, message)

    def _crowded_out(self) -> None:
        oldest = next(iter(self._waiting.values()))
        self._name(oldest.address, "too many call at once, and it has not said who it is")
        self._end(oldest)

    def _end(self, waiting: _Waiting) -> None:
        self._forget(waiting)
        _reset(waiting.peer)

    def _forget(self, waiting: _Waiting) -> None:
        self._ready.unregister(waiting.peer)
        del self._waiting[waiting.peer.fileno()]

    def _name(self, address: str, why: str) -> None:
        self.dropped += 1
        self.last = f"{address} ({why})"
        if (address, why) in self._named or len(self._named) >= _MOST_LINES:
            return
        self._named.add((address, why))
        say(f"{self.host} dropped a caller from {self.last}")
        if len(self._named) == _MOST_LINES:
            say(f"{self.host} names no more of them")


def _reset(peer: socket.socket) -> None:
    # Without the state TIME_WAIT, in which strangers would hold the port that others need at once.
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def plain(address: str) -> str:
    """The IPv4 address of a caller that a socket for both families shows as ::ffff:10.0.0.1.

    >>> plain("::ffff:10.0.0.1")
    '10.0.0.1'
    """
    return address.removeprefix("::ffff:")
