"""Process 0 listens on one address of its host where it can."""

import socket

import pytest

from jaxnet.cluster import addresses
from jaxnet.cluster.addresses import Address, listening_address

# What names resolve to, and which addresses this host has, in these tests.
NAMES = {
    "node1": ["10.0.0.1"],
    "debian": ["127.0.1.1"],
    "both": ["127.0.1.1", "10.0.0.1"],
    "two": ["10.0.0.1", "192.168.0.1"],
    "behind": ["203.0.113.1"],
    "fd00::1": ["fd00::1"],
}
OWN = {"127.0.0.1", "127.0.1.1", "10.0.0.1", "192.168.0.1", "fd00::1"}


@pytest.fixture
def host(monkeypatch):
    def look_up(name, *_, **__):
        if name not in NAMES:
            raise socket.gaierror("unknown")
        return [(None, None, None, "", (address, 0)) for address in NAMES[name]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "is_own", OWN.__contains__)
    monkeypatch.setattr(addresses, "interface_address", {"eth1": "192.168.0.1"}.get)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("coordinator", "interface", "wanted"),
    [
        ("127.0.0.1", "eth1", "127.0.0.1"),
        ("localhost", None, "localhost"),
        ("node1", None, "10.0.0.1"),
        ("node1", "eth1", "10.0.0.1"),  # the interface may be for the collectives alone
        ("fd00::1", None, "fd00::1"),
        ("both", None, "10.0.0.1"),
        ("two", None, "::"),  # the others may call either
        ("debian", None, "::"),
        ("debian", "eth1", "192.168.0.1"),
        ("behind", None, "::"),
        ("behind", "eth1", "192.168.0.1"),
        ("behind", "ib0", "::"),  # without an IPv4 address
        ("unknown", None, "::"),
    ],
)
def test_one_address_wherever_it_is_known(coordinator, interface, wanted):
    assert listening_address(Address(coordinator, 1234), interface) == Address(wanted, 1234)


def test_the_address_of_an_interface():
    assert addresses.interface_address("lo") == "127.0.0.1"
    assert addresses.interface_address("none") is None
