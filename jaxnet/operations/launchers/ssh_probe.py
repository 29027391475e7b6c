"""Run on a host that `jaxnet launch ssh` probes: print the address by which ssh reached it, and a free port.

This is a file of its own because its text travels over ssh to a host that need have nothing but Python 3.10.
"""

import os
import socket
import sys


def main() -> None:
    """Print one line; its first word tells it from whatever else a login prints."""
    address = os.environ.get("SSH_CONNECTION", "? ? ? ?").split()[2]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind(("", 0))
        print("jaxnet-first-host", address, probe.getsockname()[1])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
