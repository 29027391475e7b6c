"""Network addresses: as users write them, what they resolve to here, and where process 0 listens."""

import fcntl
import ipaddress
import os
import socket
import struct
from typing import NamedTuple

from jaxnet.errors import InputError

_SIOCGIFADDR = 0x8915  # Linux: ask for an interface's IPv4 address


class Address(NamedTuple):
    """A host (a name, or an IP address without brackets) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, variable: str) -> Address:
    """Split `host:port`; an error names `variable`.

    >>> parse_address("node1:1234", "JAX_COORDINATOR_ADDRESS")
    Address(host='node1', port=1234)
    >>> str(parse_address("[fd00::1]:1234", "JAX_COORDINATOR_ADDRESS"))
    '[fd00::1]:1234'
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or (":" in host and not bracketed):
        raise InputError(f"{variable} is {text!r}; give host:port, as in node1:1234 or [fd00::1]:1234")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise InputError(f"{variable} is {text!r}; its port {port!r} must be a number from 1 to 65535")
    return Address(host[1:-1] if bracketed else host, int(port))


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost`, 127.x.x.x or ::1, by which every host reaches only itself.

    >>> is_loopback("127.0.1.1"), is_loopback("localhost"), is_loopback("node1")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolves_to_loopback(host: str) -> bool:
    """Whether `host` resolves to a loopback address, as the own name of a stock Debian does (127.0.1.1)."""
    try:
        return any(is_loopback(address) for address in look_up(host))
    except OSError:
        return False


def look_up(host: str) -> list[str]:
    """The IP addresses of `host`; OSError if it has none, also if no host can have such a name.

    >>> look_up("127.0.0.1")
    ['127.0.0.1']
    """
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:  # an empty part, or one of more than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from None
    return [str(entry[4][0]) for entry in entries]


def check_interface(name: str, variable: str) -> None:
    """Raise InputError, with the interfaces of this host, when `name` is none of them."""
    present = [interface for _, interface in socket.if_nameindex()]
    if name not in present:
        raise InputError(
            f"{variable} is {name!r}, but {socket.gethostname()} has no such network interface;"
            f" it has {', '.join(present)}"
        )


# ---- This host -----------------------------------------------------------------------------------------


def listening_address(coordinator: Address, interface: str | None) -> Address:
    """The coordinator's address if it is this host's own, else the interface's, else every address of this host.

    Whoever reaches the port can join the job, so it is open to one network where possible. Every address is for a host
    that others reach by an address that it does not have (behind a router, in a container), or whose own name resolves
    to loopback, if no interface is named.

    >>> listening_address(Address("127.0.0.1", 1234), None)
    Address(host='127.0.0.1', port=1234)
    """
    if is_loopback(coordinator.host):
        return coordinator
    try:
        found = look_up(coordinator.host)
    except OSError:
        found = []  # a name that other hosts know and this one does not
    own = [address for address in found if is_own(address) and not is_loopback(address)]
    if not own and interface is not None:
        own = [address for address in [interface_address(interface)] if address is not None]
    return Address(own[0] if len(set(own)) == 1 else "::", coordinator.port)


def is_own(address: str) -> bool:
    """Whether this host can listen at `address`.

    >>> is_own("127.0.0.1"), is_own("203.0.113.1")
    (True, False)
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def interface_address(name: str) -> str | None:
    """The IPv4 address of a network interface, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
