"""Where process 0 listens: on one address of this host, not on every network that the host is joined to.

Whoever reaches the coordinator's port can join the job, so it is opened towards the other hosts alone.
"""

import fcntl
import os
import socket
import struct

from jaxnet.cluster.address import Address, is_loopback

_SIOCGIFADDR = 0x8915


def listening_address(coordinator: Address, interface: str | None) -> Address:
    """The coordinator's address if it is this host's own, else the interface's, else every address of the host.

    The last is for a host that others reach by an address that it does not have (behind a router, in a container)
    or whose own name leads it to loopback, where no interface is named.

    >>> listening_address(Address("127.0.0.1", 1234), None)
    Address(host='127.0.0.1', port=1234)
    """
    if is_loopback(coordinator.host):
        return coordinator
    own = [address for address in _addresses(coordinator.host) if is_own(address) and not is_loopback(address)]
    if not own and interface is not None:
        own = [address for address in [interface_address(interface)] if address is not None]
    return Address(own[0] if len(set(own)) == 1 else "::", coordinator.port)


def _addresses(host: str) -> list[str]:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []  # a name that others know, and this host does not
    return [str(entry[4][0]) for entry in entries]


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
