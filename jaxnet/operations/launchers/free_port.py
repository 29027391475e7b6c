"""A port for rank 0 to listen on. Run as a program, also print the address by which ssh reached this host.

This is a file of its own because `jaxnet launch ssh` sends its text to a host that need have nothing but Python 3.10.
"""

import os
import random
import socket
import sys
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(address: str = "127.0.0.1") -> int:
    """A port of `address` (empty: of every address) that nothing listens on now.

    Where there is room, it is below the ports that the kernel gives to outgoing connections, so that none of those
    takes it before rank 0 does. It is drawn at random, so that two launches at once hardly ever draw the same.
    """
    first_outgoing = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0
    below = range(10_000, first_outgoing)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in random.SystemRandom().sample(below, min(100, len(below))):  # whatever a user has seeded
        with socket.socket(family) as probe, suppress(OSError):
            probe.bind((address, port))
            return port
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Print one line; its first word tells it from whatever else a login prints."""
    address = os.environ.get("SSH_CONNECTION", "? ? ? ?").split()[2]
    print("jaxnet-first-host", address, free_port("::" if ":" in address else ""))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
