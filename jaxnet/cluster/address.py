"""Network addresses as users write them: `host:port`, names that resolve, interfaces."""

import ipaddress
import socket
from typing import NamedTuple

from jaxnet.errors import InputError


class Address(NamedTuple):
    """A host (a name, or an IP address without brackets) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, variable: str) -> Address:
    """Split `host:port`; `variable` is named in the error when that is not what `text` is.

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
    """Whether `host` is written as this machine to itself: `localhost`, 127.x.x.x or ::1.

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
    """Whether any address of `host` is a loopback one, as a stock Debian's own name is (127.0.1.1)."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(is_loopback(str(entry[4][0])) for entry in found)


def check_interface(name: str, variable: str) -> None:
    """Raise `InputError` listing the interfaces of this host when `name` is none of them."""
    present = [interface for _, interface in socket.if_nameindex()]
    if name not in present:
        raise InputError(
            f"{variable} is {name!r}, but {socket.gethostname()} has no such network interface;"
            f" it has {', '.join(present)}"
        )
