"""PyTorch's variables for a process's place from jaxnet's, which are JAX's. Needs neither."""

import fcntl
import socket
import struct
import sys
from collections.abc import Mapping

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def torch_place(environ: Mapping[str, str]) -> dict[str, str]:
    """MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and GLOO_SOCKET_IFNAME for the place that `environ` describes.

    The port is the one after the coordinator's, so that both frameworks can run at once.
    """
    try:
        host, port = environ["JAX_COORDINATOR_ADDRESS"].rsplit(":", 1)
        place = {
            "MASTER_ADDR": host.strip("[]"),
            "MASTER_PORT": environ.get("MASTER_PORT") or str(int(port) + 1),
            "WORLD_SIZE": environ["JAX_NUM_PROCESSES"],
            "RANK": environ["JAX_PROCESS_ID"],
        }
    except (KeyError, ValueError) as error:
        sys.exit(f"error: no place among processes ({error}); start it with jaxnet launch local --processes 2 -- ...")
    given = environ.get("GLOO_SOCKET_IFNAME") or environ.get("JAXNET_NETWORK_INTERFACE")
    return place | {"GLOO_SOCKET_IFNAME": given or interface_towards(place["MASTER_ADDR"])}


def interface_towards(host: str) -> str:
    """The interface from which this machine reaches `host`; Gloo would guess it from the machine's own name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address(probe, name) == own:
                return name
    sys.exit(f"error: no interface has the address {own}, from which {host} is reached; set GLOO_SOCKET_IFNAME")


def _address(probe: socket.socket, interface: str) -> str | None:
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()))
    except OSError:  # it has none
        return None
    return socket.inet_ntoa(answer[20:24])
