"""On a host of `jaxnet launch ssh` that is asked whether it is there: where ssh reached it, and a free port."""

import os
import socket
import sys


def main() -> None:
    """Print them behind a word by which they are told from what a login prints."""
    address = os.environ.get("SSH_CONNECTION", "? ? ? ?").split()[2]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind(("", 0))
        print("jaxnet-first-host", address, probe.getsockname()[1])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
