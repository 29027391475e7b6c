"""Names and addresses: this process's place, this host's own name, the coordinator's, the interface's."""

import socket
import sys
import time
from collections.abc import Mapping

from jaxnet.cluster.address import Address, check_interface, is_loopback
from jaxnet.cluster.doctor.finding import Finding, failed, ok, warning
from jaxnet.cluster.doctor.limit import TimedOut, within
from jaxnet.cluster.environment import BIND, COORDINATOR, INTERFACE, Place
from jaxnet.cluster.listening import interface_address, is_own
from jaxnet.errors import InputError

_LOOKUP_SECONDS = 5.0
_AGAIN_SECONDS = 0.2
_HOSTS_CURE = "in /etc/hosts of {host}, give {name} the address at which the other hosts reach it"


def check_names(place: Place, environ: Mapping[str, str], timeout_seconds: float) -> list[Finding]:
    """What names of this place lead to, as this host sees them."""
    found = [_own_name(socket.gethostname(), place)]
    if place.coordinator:
        found.append(_coordinator(place.coordinator, place, BIND in environ, timeout_seconds))
    if place.interface:
        found.append(_interface(place.interface))
    return found


def addresses_of(host: str) -> list[str]:
    """The addresses that the name `host` leads to, each once; OSError or `TimedOut` when there are none."""
    entries = within(_LOOKUP_SECONDS, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _own_name(name: str, place: Place) -> Finding:
    check = "own name"
    try:
        addresses = addresses_of(name)
    except (OSError, TimedOut) as error:
        found = f"{name} has no address ({_reason(error)})"
        return warning(check, found, _HOSTS_CURE.format(host=name, name=name))
    found = f"{name} is {', '.join(addresses)}"
    if place.process_count == 1 or not any(map(is_loopback, addresses)):
        return ok(check, found)
    if place.coordinator and is_loopback(place.coordinator.host):
        return ok(check, f"{found}, a loopback address, as the coordinator's is")
    where = "jaxnet listens elsewhere, but MPI and programs that use JAX alone would wait there for other hosts"
    if place.coordinator is None:
        where = "collectives of the CPU listen there, where no other host can call"
    return warning(check, f"{found}, a loopback address: {where}", _HOSTS_CURE.format(host=name, name=name))


def _coordinator(coordinator: Address, place: Place, bound: bool, timeout_seconds: float) -> Finding:
    check, own = "coordinator", socket.gethostname()
    try:
        addresses = _await_addresses(coordinator.host, timeout_seconds)
    except (OSError, TimedOut) as error:
        cure = f"give {COORDINATOR} a name that {own} knows, or an address"
        return failed(check, f"{own} cannot resolve {coordinator.host} ({_reason(error)})", cure)
    found = str(coordinator)
    if addresses != [coordinator.host]:
        found += f" is {', '.join(addresses)}"
    if is_loopback(coordinator.host):
        return ok(check, f"{found}, loopback: for processes of one host alone")
    loopback = any(map(is_loopback, addresses))
    if place.process_index != 0 and loopback:
        cure = f"in /etc/hosts of {own}, give {coordinator.host} the address of rank 0's host"
        return warning(check, f"{found} on {own}, a loopback address: it leads back to {own}", cure)
    if place.process_index == 0 and not bound and not any(map(is_own, addresses)):
        cure = f"give {COORDINATOR} an address of the host where rank 0 runs"
        return warning(check, f"{found}, which is no address of {own}, where rank 0 runs", cure)
    return ok(check, found)


def _await_addresses(host: str, timeout_seconds: float) -> list[str]:
    """As `addresses_of`, for a name that may take a while to appear, as a Kubernetes pod's does."""
    give_up = time.monotonic() + timeout_seconds
    while True:
        try:
            return addresses_of(host)
        except socket.gaierror:
            if time.monotonic() > give_up:
                raise
        time.sleep(_AGAIN_SECONDS)


def _interface(name: str) -> Finding:
    try:
        check_interface(name, INTERFACE)
    except InputError as error:
        return failed("interface", str(error), f"set {INTERFACE} to one of them, or unset it")
    address = interface_address(name)
    if address is None and sys.platform == "linux":
        cure = f"give it one, or set {INTERFACE} to another"
        return warning("interface", f"{name} of {socket.gethostname()} has no IPv4 address", cure)
    return ok("interface", f"{name} has {address}")


def _reason(error: OSError | TimedOut) -> str:
    if isinstance(error, TimedOut):
        return f"no answer within {_LOOKUP_SECONDS:g} s"
    return (error.strerror or str(error)).lower()
