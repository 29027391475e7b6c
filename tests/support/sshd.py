"""Real ssh between the hosts of a lab: keys, a server on each, and a client's configuration that knows them."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from support.programs import PATIENCE

_SERVER = """
Port 22
ListenAddress 10.0.0.{number}
HostKey {folder}/key{number}
PidFile none
AuthorizedKeysFile {folder}/user.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
"""
_CLIENT = """
User root
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""
# Its folder must be under /run, which is not ours to change: it gets one of its own.
_START = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$@"'
_SSHD = "/usr/sbin/sshd"


def missing():
    """Why there can be no ssh server here, or an empty string."""
    if not (Path(_SSHD).exists() and shutil.which("ssh")):
        return "there is no sshd (Debian: apt-get install openssh-server)"
    return "" if os.geteuid() == 0 else "an ssh server of the lab needs root"


def write_keys(folder, hosts=2):
    """Everything that servers and clients read; the client's configuration is `ssh_config`."""
    known = []
    for name in ("user", *(f"key{number}" for number in range(1, hosts + 1))):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    for number in range(1, hosts + 1):
        (folder / f"sshd{number}").write_text(_SERVER.format(number=number, folder=folder))
        known.append(f"host{number - 1} {(folder / f'key{number}.pub').read_text()}")
    (folder / "known_hosts").write_text("".join(known))
    (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))


def serve(folder, host):
    """Start the server of a host of the lab, on that host, and wait until it answers. It ends with the lab."""
    server = [_SSHD, "-f", f"{folder}/sshd{host + 1}", "-E", f"{folder}/log{host}"]
    subprocess.run(["unshare", "--mount", "sh", "-c", _START, "sh", *server], check=True)
    await_server(f"host{host}")


def await_server(host):
    """Wait until a host's server answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((host, 22)) as talk:
                if talk.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.05)
        assert time.monotonic() < deadline, f"no ssh server on {host}"
