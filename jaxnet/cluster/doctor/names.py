"""Names and addresses: this process's place, this host's own name, the coordinator's, the interface's."""

import os
import socket
import struct
import sys
import time
from collections.abc import Mapping

from jaxnet.cluster.address import Address, check_interface, is_loopback
from jaxnet.cluster.doctor.finding import Finding, failed, ok, warning
from jaxnet.cluster.doctor.limit import TimedOut, within
from jaxnet.cluster.environment import BIND, COORDINATOR, INTERFACE, Place
from jaxnet.errors import InputError

_LOOKUP_SECONDS = 5.0
_AGAIN_SECONDS = 0.2
_SIOCGIFADDR = 0x8915
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


def interface_address(name: str) -> str | None:
    """The IPv4 address of a network interface, or None."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


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
    if place.process_index == 0 and not bound and not any(map(_is_own, addresses)):
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


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


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
