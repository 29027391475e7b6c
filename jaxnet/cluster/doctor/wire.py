"""One TCP connection between two hosts: how long a byte takes, and how many come through in a fraction of a second."""

import socket
import struct
import time
from typing import NamedTuple

_LENGTH = struct.Struct("!Q")
_PINGS = 8
_PROBE = 64 * 1024
_TARGET_SECONDS = 0.15  # of a transfer that is timed
_MOST = 32 << 20
_TRIES = 2
_CHUNK = 1 << 20


class Sent(NamedTuple):
    """What one end found: seconds for a byte there and back, and bits a second of what it sent."""

    round_trip: float
    rate: float


def measure(peer: socket.socket, first: bool) -> Sent:
    """Measure with the other end, which does the same with the other `first`; OSError when it falls silent.

    The ends send in turn: both ways at once would share the CPU.
    """
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if first:
        found = _send(peer)
        _receive(peer)
    else:
        _receive(peer)
        found = _send(peer)
    return found


def _send(peer: socket.socket) -> Sent:
    round_trip = min(_timed(peer, 1) for _ in range(_PINGS))
    per_second = _PROBE / (_timed(peer, _PROBE) - round_trip / 2)
    # A short transfer may pass in one burst, or wait for TCP to grow its window: it only says how long one to take.
    size = max(_PROBE, min(_MOST, int(per_second * _TARGET_SECONDS)))
    taken = min(_timed(peer, size) for _ in range(_TRIES)) - round_trip / 2
    peer.sendall(_LENGTH.pack(0))
    return Sent(round_trip, size * 8 / taken)


def _timed(peer: socket.socket, size: int) -> float:
    payload = bytes(size)
    started = time.perf_counter()
    peer.sendall(_LENGTH.pack(size))
    peer.sendall(payload)
    take(peer, 1)
    return time.perf_counter() - started


def _receive(peer: socket.socket) -> None:
    while size := _LENGTH.unpack(take(peer, _LENGTH.size))[0]:
        if size > _MOST:
            raise OSError("it is not a rank of this job")
        while size:
            size -= len(take(peer, min(size, _CHUNK)))
        peer.sendall(b"!")


def take(peer: socket.socket, size: int) -> bytes:
    """Exactly that many bytes."""
    parts = []
    while size:
        part = peer.recv(size)
        if not part:
            raise OSError("it hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
