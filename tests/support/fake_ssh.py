"""An `ssh` without a network: any host is this machine, until a file says that its link is down."""

import sys

# The files `down-HOST` are the links that are down; what runs behind one that goes down finds its input closed.
_SSH = """\
#!{python} -IS
import contextlib, os, select, subprocess, sys
host, command = sys.argv[sys.argv.index("--") + 1 :]
down = os.path.join({folder!r}, "down-" + host)
def lost():
    if os.path.exists(down):
        print("ssh: connect to host", host, "port 22: No route to host", file=sys.stderr, flush=True)
        return True
if lost():
    sys.exit(255)
environ = os.environ | dict(SSH_CONNECTION="192.0.2.9 5 192.0.2.1 22", FAKE_HOST=host)
process = subprocess.Popen(["sh", "-c", command], env=environ, stdin=subprocess.PIPE, bufsize=0)
while process.poll() is None:
    if lost():
        process.stdin.close()
        process.wait()
        sys.exit(255)
    if select.select([0], [], [], 0.05)[0]:
        if not (data := os.read(0, 1 << 20)):
            process.stdin.close()
            process.wait()
            break
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(data)
sys.exit(128 - process.returncode if process.returncode < 0 else process.returncode)
"""


class FakeNetwork:
    """`path` has the fake before all other programs; links go down and up."""

    def __init__(self, folder):
        self._folder = folder
        program = folder / "ssh"
        program.write_text(_SSH.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)

    def path(self, environ):
        return f"{self._folder}:{environ['PATH']}"

    def down(self, *hosts):
        for host in hosts:
            (self._folder / f"down-{host}").touch()

    def up(self, host):
        (self._folder / f"down-{host}").unlink()
