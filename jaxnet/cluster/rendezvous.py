"""All processes meet on the coordinator's port before JAX starts, so that nothing fails in silence.

When the coordinator cannot be reached or a process never comes, `jax.distributed.initialize` aborts with a core dump
after minutes and names nobody. So every other process first calls process 0 and gives its number. Process 0 waits for
all, then tells all to start, or tells all who is missing. After that the port is free for JAX.

The connections also show at which address each host is reached. Gloo has to listen there; by itself it takes what the
host's own name resolves to, which is 127.0.1.1 on a stock Debian.
"""

import ipaddress
import socket
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxnet.cluster.addresses import Address, is_loopback, look_up, resolves_to_loopback
from jaxnet.cluster.environment import name_ranks
from jaxnet.cluster.job_token import TOKEN, is_proof, new_nonce, proof
from jaxnet.cluster.messages import (
    FIRST_WORD_SECONDS,
    BadMessage,
    Caller,
    Door,
    Silence,
    has_hung_up,
    plain,
    read_field,
    receive,
    send,
)
from jaxnet.errors import InputError

_RETRY_SECONDS = 0.2
_RESOLVE_SECONDS = 30.0  # the name of a new host, such as a Kubernetes pod, may take a while to appear
_SERVICE_SECONDS = 0.02
_LONGEST_SERVICE_SECONDS = 30.0  # for JAX to listen where rank 0 has listened
_LONGEST_ERROR = 8000  # characters
_BACKLOG = 1024  # the ranks of a large job call at once


def meet(
    coordinator: Address, bind: Address, index: int, count: int, timeout_seconds: float, token: str | None = None
) -> str:
    """Wait until all `count` processes have come; return this process's address towards the others.

    With a `token`, which all of them must have, a process that does not prove to have it is none of them.

    Raises:
        InputError: they did not come within `timeout_seconds`. Every process that can be reached raises it.
    """
    deadline = time.monotonic() + timeout_seconds
    if index == 0:
        return _Host(coordinator, bind, count, timeout_seconds, deadline, token).gather()
    return _Guest(coordinator, index, count, timeout_seconds, deadline, token).join()


class _Rank(NamedTuple):
    """Another process that has come: its connection, where it is, and the nonce that its answer must hold."""

    peer: socket.socket
    address: str
    nonce: str


@dataclass
class _Host:
    """Process 0: listens, collects the others, then answers all at once."""

    coordinator: Address
    bind: Address
    count: int
    timeout_seconds: float
    deadline: float
    token: str | None
    guests: dict[int, _Rank] = field(default_factory=dict)
    nonces: set[str] = field(default_factory=set)

    def gather(self) -> str:
        try:
            with _listen(self.bind) as server, Door(server, "rank 0") as door:
                while not self._complete():
                    self._admit(self._next(door), door)
            # Close the port before anyone may start: from then on JAX listens there.
            address = self._own_address()
            self._answer("address", address)
            return address
        except InputError as error:
            self._answer("error", str(error)[:_LONGEST_ERROR])
            raise
        finally:
            for guest in self.guests.values():
                guest.peer.close()

    def _complete(self) -> bool:
        if len(self.guests) < self.count - 1:
            return False
        for index in [index for index, guest in self.guests.items() if has_hung_up(guest.peer)]:
            self.guests.pop(index).peer.close()  # it died meanwhile and may start again
        return len(self.guests) == self.count - 1

    def _next(self, door: Door) -> Caller:
        try:
            caller = door.next(self.deadline)
        except OSError as error:
            raise InputError(
                f"rank 0 cannot take another connection, with {len(self.guests)} of {self.count - 1}:"
                f" {(error.strerror or str(error)).lower()}; allow more open files with ulimit -n"
            ) from None
        if caller is None:
            raise InputError(self._who_is_missing(door))
        return caller

    def _admit(self, caller: Caller, door: Door) -> None:
        try:
            index, count = _place_in(caller.message)
            nonce = self._checked_nonce(caller.message, index, count)
        except _NotOurs as problem:
            door.drop(caller, str(problem), {"error": str(problem)})
            return
        except BadMessage as problem:
            door.drop(caller, str(problem))
            return
        earlier = self.guests.get(index)
        self.guests[index] = _Rank(caller.peer, caller.address, nonce)
        if earlier is not None:
            self._replace(earlier, index, caller.address)
        if count != self.count:
            raise InputError(f"rank {index} was told of {count} processes, but rank 0 of {self.count}")

    def _checked_nonce(self, message: dict[str, Any], index: int, count: int) -> str:
        """The nonce of a caller that has this job's token; empty where nobody has one."""
        if self.token is None:
            if "proof" in message:
                raise _NotOurs(f"rank {index} has a {TOKEN}, and rank 0 has none: give all processes the same")
            return ""
        if "proof" not in message:
            raise _NotOurs(f"rank 0 has a {TOKEN}, and rank {index} has none: give all processes the same")
        nonce = read_field(message, "nonce", str)
        if not is_proof(read_field(message, "proof", str), self.token, "guest", index, count, nonce):
            raise _NotOurs(f"rank {index} has another {TOKEN} than rank 0: give all processes the same")
        if nonce in self.nonces:
            raise BadMessage("it repeated what a rank had said before")
        self.nonces.add(nonce)
        return nonce

    def _replace(self, earlier: _Rank, index: int, address: str) -> None:
        """Accept a second caller for one rank if the first has hung up: then it is the same rank, started again."""
        with earlier.peer:
            if has_hung_up(earlier.peer):
                return
            problem = f"two processes say that they are rank {index}, on {earlier.address} and {address}"
            self._say(earlier, "error", problem)
            raise InputError(problem)

    def _own_address(self) -> str:
        """Where the others reached this host. Ignore loopback if possible: only callers on this host come that way."""
        reached = [plain(guest.peer.getsockname()[0]) for guest in self.guests.values()]
        return next((address for address in reached if not is_loopback(address)), reached[0])

    def _answer(self, kind: str, text: str) -> None:
        for guest in self.guests.values():
            self._say(guest, kind, text)
        # Let the callers hang up first: the side that does so lingers in TIME_WAIT, and JAX needs this port now.
        until = time.monotonic() + FIRST_WORD_SECONDS
        for guest in self.guests.values():
            has_hung_up(guest.peer, until)

    def _say(self, guest: _Rank, kind: str, text: str) -> None:
        proven = {} if self.token is None else {"proof": proof(self.token, "host", guest.nonce, kind, text)}
        send(guest.peer, {kind: text} | proven, time.monotonic() + FIRST_WORD_SECONDS)

    def _who_is_missing(self, door: Door) -> str:
        missing = [index for index in range(1, self.count) if index not in self.guests]
        message = (
            f"{name_ranks(missing)} of {self.count} did not call rank 0 at {self.coordinator} within"
            f" {self.timeout_seconds:g} s: see that they run, and that this address is rank 0's host"
        )
        return message + (f"; callers that were dropped: {door.dropped}, the last {door.last}" if door.dropped else "")


class _NotOurs(Exception):
    """The caller is a rank of another job, or of one whose processes have not all got the same token."""


def _place_in(message: dict[str, Any]) -> tuple[int, int]:
    """The number of the rank that greets, and the count that it was told; BadMessage if no rank would say that."""
    index, count = read_field(message, "index", int), read_field(message, "count", int)
    if not 1 <= index < count:
        raise BadMessage(f"it said that it is rank {index} of {count}"[:100])
    return index, count


@dataclass
class _Guest:
    """Any other process: calls process 0 until it answers."""

    coordinator: Address
    index: int
    count: int
    timeout_seconds: float
    deadline: float
    token: str | None

    def join(self) -> str:
        self._await_name()
        problem, stranger = "no answer", False
        while (left := self.deadline - time.monotonic()) > 0:
            try:
                with socket.create_connection(self.coordinator, timeout=min(left, FIRST_WORD_SECONDS)) as host:
                    own = plain(host.getsockname()[0])
                    there = self._ask(host)
            except BadMessage as error:
                problem, stranger = str(error), not isinstance(error, Silence)
            except OSError as error:
                problem, stranger = (error.strerror or str(error)).lower(), False
            else:
                self._await_service()
                return there if is_loopback(own) else own
            time.sleep(_RETRY_SECONDS)
        raise InputError(self._unreachable(problem, stranger))

    def _ask(self, host: socket.socket) -> str:
        """Say who this is and return rank 0's address; InputError if it refuses, BadMessage if it is not rank 0."""
        nonce = new_nonce()
        hello: dict[str, Any] = {"index": self.index, "count": self.count}
        if self.token is not None:
            hello |= {"nonce": nonce, "proof": proof(self.token, "guest", self.index, self.count, nonce)}
        send(host, hello, time.monotonic() + FIRST_WORD_SECONDS)
        # Wait a little longer than process 0, which gives up first and then says why.
        answer = receive(host, max(self.deadline, time.monotonic()) + FIRST_WORD_SECONDS)
        kind = "error" if "error" in answer else "address"
        text = read_field(answer, kind, str)
        if self.token is not None:
            proven = answer.get("proof")
            if type(proven) is not str or not is_proof(proven, self.token, "host", nonce, kind, text):
                raise BadMessage(f"it does not have the {TOKEN} of this job, and said {text!r:.200}")
        if kind == "error":
            raise InputError(_printable(text[:_LONGEST_ERROR]))
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise BadMessage(f"it said that its address is {text!r:.60}") from None
        return text

    def _await_name(self) -> None:
        give_up = min(self.deadline, time.monotonic() + _RESOLVE_SECONDS)
        while True:
            try:
                look_up(self.coordinator.host)
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
        until = max(self.deadline, time.monotonic() + _LONGEST_SERVICE_SECONDS)
        while time.monotonic() < until:
            try:
                socket.create_connection(self.coordinator, timeout=FIRST_WORD_SECONDS).close()
                return
            except OSError:
                time.sleep(_SERVICE_SECONDS)
        raise InputError(
            f"rank {self.index} on {socket.gethostname()}: all had come to rank 0 at {self.coordinator}, and then JAX"
            " did not listen there: see what rank 0 says"
        )

    def _unreachable(self, problem: str, stranger: bool) -> str:
        message = (
            f"rank {self.index} on {socket.gethostname()} could not reach rank 0 at {self.coordinator}"
            f" for {self.timeout_seconds:g} s ({problem}): "
        )
        if stranger:
            return message + (
                "what answers there is not rank 0 of this job; end it, or give another port in JAX_COORDINATOR_ADDRESS"
            )
        message += "does rank 0 run there, is the port open?"
        if resolves_to_loopback(self.coordinator.host):
            message += (
                f" {self.coordinator.host} resolves to loopback on this host:"
                " with several hosts give an address that others can reach"
            )
        return message


def _printable(text: str) -> str:
    """Without what could steer a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _listen(bind: Address) -> socket.socket:
    try:
        if bind.host in ("::", "0.0.0.0") and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("::", bind.port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        host = "0.0.0.0" if bind.host == "::" else bind.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, bind.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"rank 0 on {socket.gethostname()} cannot listen on port {bind.port}:"
            f" {(error.strerror or str(error)).lower()}; choose another port in JAX_COORDINATOR_ADDRESS"
        ) from None
