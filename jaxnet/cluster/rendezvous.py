"""All processes meet on the coordinator's port before JAX starts, so that nothing fails in silence.

When the coordinator cannot be reached or a process never comes, `jax.distributed.initialize` aborts with a core dump
after minutes and names nobody. So every other process first calls process 0 and gives its number. Process 0 waits for
all, then tells all to start, or tells all who is missing. After that the port is free for JAX.

The connections also show at which address each host is reached. Gloo has to listen there; by itself it takes what the
host's own name resolves to, which is 127.0.1.1 on a stock Debian.
"""

import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from jaxnet.cluster.addresses import Address, is_loopback, resolves_to_loopback
from jaxnet.cluster.environment import name_ranks
from jaxnet.errors import InputError

_RETRY_SECONDS = 0.2
_RESOLVE_SECONDS = 30.0  # the name of a new host, such as a Kubernetes pod, may take a while to appear
_HELLO_SECONDS = 5.0
_SERVICE_SECONDS = 0.02
_LONGEST_MESSAGE = 65536


def meet(coordinator: Address, bind: Address, index: int, count: int, timeout_seconds: float) -> str:
    """Wait until all `count` processes have come; return this process's address towards the others.

    Raises:
        InputError: they did not come within `timeout_seconds`. Every process that can be reached raises it.
    """
    deadline = time.monotonic() + timeout_seconds
    if index == 0:
        return _Host(coordinator, bind, count, timeout_seconds, deadline).gather()
    return _Guest(coordinator, index, count, timeout_seconds, deadline).join()


@dataclass
class _Host:
    """Process 0: listens, collects the others, then answers all at once."""

    coordinator: Address
    bind: Address
    count: int
    timeout_seconds: float
    deadline: float
    guests: dict[int, socket.socket] = field(default_factory=dict)

    def gather(self) -> str:
        try:
            with _listen(self.bind) as server:
                while not self._complete():
                    self._admit(server)
            # Close the port before anyone may start: from then on JAX listens there.
            address = self._own_address()
            self._answer({"address": address})
            return address
        except InputError as error:
            self._answer({"error": str(error)})
            raise
        finally:
            for guest in self.guests.values():
                guest.close()

    def _complete(self) -> bool:
        if len(self.guests) < self.count - 1:
            return False
        for index in [index for index, guest in self.guests.items() if _has_hung_up(guest)]:
            self.guests.pop(index).close()  # it died meanwhile and may start again
        return len(self.guests) == self.count - 1

    def _admit(self, server: socket.socket) -> None:
        try:
            server.settimeout(max(self.deadline - time.monotonic(), 0.001))
            guest, caller = server.accept()
        except TimeoutError:
            raise InputError(self._who_is_missing()) from None
        hello = _receive(guest, min(_HELLO_SECONDS, max(self.deadline - time.monotonic(), 0.001)))
        index, count = hello.get("index"), hello.get("count")
        if not isinstance(index, int) or not isinstance(count, int):
            guest.close()  # a port scanner or a health check
            return
        earlier = self.guests.get(index)
        self.guests[index] = guest
        if earlier is not None:
            self._replace(earlier, index, caller[0])
        if count != self.count:
            raise InputError(f"rank {index} was told of {count} processes, but rank 0 of {self.count}")

    def _replace(self, earlier: socket.socket, index: int, caller: str) -> None:
        """Accept a second caller for one rank if the first has hung up: then it is the same rank, started again."""
        with earlier:
            if _has_hung_up(earlier):
                return
            there = _plain(earlier.getpeername()[0])
            problem = f"two processes say that they are rank {index}, on {there} and {_plain(caller)}"
            _send(earlier, {"error": problem})
            raise InputError(problem)

    def _own_address(self) -> str:
        """Where the others reached this host. Ignore loopback if possible: only callers on this host come that way."""
        reached = [_plain(guest.getsockname()[0]) for guest in self.guests.values()]
        return next((address for address in reached if not is_loopback(address)), reached[0])

    def _answer(self, message: dict[str, str]) -> None:
        for guest in self.guests.values():
            _send(guest, message)
        for guest in self.guests.values():
            # Let the caller hang up first: the side that does so lingers in TIME_WAIT, and JAX needs this port now.
            _has_hung_up(guest, _HELLO_SECONDS)

    def _who_is_missing(self) -> str:
        missing = [index for index in range(1, self.count) if index not in self.guests]
        return (
            f"{name_ranks(missing)} of {self.count} did not call rank 0 at {self.coordinator} within"
            f" {self.timeout_seconds:g} s: see that they run, and that this address is rank 0's host"
        )


@dataclass
class _Guest:
    """Any other process: calls process 0 until it answers."""

    coordinator: Address
    index: int
    count: int
    timeout_seconds: float
    deadline: float

    def join(self) -> str:
        self._await_name()
        problem = "no answer"
        while (left := self.deadline - time.monotonic()) > 0:
            try:
                with socket.create_connection(self.coordinator, timeout=min(left, _HELLO_SECONDS)) as host:
                    own = _plain(host.getsockname()[0])
                    _send(host, {"index": self.index, "count": self.count})
                    # Wait a little longer than process 0, which gives up first and then says why.
                    answer = _receive(host, max(self.deadline - time.monotonic(), 0) + _HELLO_SECONDS)
            except OSError as error:
                problem = error.strerror or str(error)
            else:
                if "error" in answer:
                    raise InputError(answer["error"])
                if "address" in answer:
                    self._await_service()
                    return str(answer["address"]) if is_loopback(own) else own
                problem = "it hung up without an answer"
            time.sleep(_RETRY_SECONDS)
        raise InputError(self._unreachable(problem))

    def _await_name(self) -> None:
        give_up = min(self.deadline, time.monotonic() + _RESOLVE_SECONDS)
        while True:
            try:
                socket.getaddrinfo(*self.coordinator)
                return
            except OSError as error:
                if time.monotonic() > give_up:
                    raise InputError(
                        f"rank {self.index} on {socket.gethostname()} cannot resolve the coordinator's name"
                        f" {self.coordinator.host!r}: {error.strerror}; give a name it knows, or an address"
                    ) from None
            time.sleep(_RETRY_SECONDS)

    def _await_service(self) -> None:
        """Wait until JAX listens, because its client waits a whole second after a first call that is refused."""
        while time.monotonic() < self.deadline:
            try:
                socket.create_connection(self.coordinator, timeout=_HELLO_SECONDS).close()
                return
            except OSError:
                time.sleep(_SERVICE_SECONDS)

    def _unreachable(self, problem: str) -> str:
        message = (
            f"rank {self.index} on {socket.gethostname()} could not reach rank 0 at {self.coordinator}"
            f" for {self.timeout_seconds:g} s ({problem.lower()}): does rank 0 run there, is the port open?"
        )
        if resolves_to_loopback(self.coordinator.host):
            message += (
                f" {self.coordinator.host} resolves to loopback on this host:"
                " with several hosts give an address that others can reach"
            )
        return message


def _listen(bind: Address) -> socket.socket:
    try:
        if bind.host in ("::", "0.0.0.0") and socket.has_dualstack_ipv6():
            return socket.create_server(("::", bind.port), family=socket.AF_INET6, dualstack_ipv6=True)
        host = "0.0.0.0" if bind.host == "::" else bind.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, bind.port), family=family)
    except OSError as error:
        raise InputError(
            f"rank 0 on {socket.gethostname()} cannot listen on port {bind.port}:"
            f" {(error.strerror or str(error)).lower()}; choose another port in JAX_COORDINATOR_ADDRESS"
        ) from None


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the other end has gone; whoever waits for it reports that
        to.sendall(json.dumps(message).encode() + b"\n")


def _receive(source: socket.socket, timeout_seconds: float) -> dict[str, Any]:
    """One line of JSON within `timeout_seconds`, or {} when something else comes, or nothing."""
    source.settimeout(timeout_seconds)
    try:
        with source.makefile("rb") as lines:
            message = json.loads(lines.readline(_LONGEST_MESSAGE))
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


def _has_hung_up(peer: socket.socket, timeout_seconds: float = 0.001) -> bool:
    # A closed connection reads as empty, and an open one on which nothing comes runs into the time limit.
    peer.settimeout(timeout_seconds)
    try:
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _plain(address: str) -> str:
    """The IPv4 address of a caller that a socket for both families shows as ::ffff:10.0.0.1."""
    return address.removeprefix("::ffff:")
