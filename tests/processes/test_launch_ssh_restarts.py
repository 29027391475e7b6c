"""`jaxnet launch ssh --min-hosts` when the link of a host is cut, and mended: real ssh between hosts of a lab.

`benchmarks/elastic.py` does the same with a training, on more hosts and with the limits that users have.
"""

import pytest

from support.programs import PATIENCE, ROOT
from support.sshd import missing, write_keys

pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(missing()), reason=missing() or "never")]

_RANK = """
import os, signal, sys, time
from jaxnet.cluster.progress import noted
attempt = int(os.environ["JAXNET_ATTEMPT"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("attempt", attempt, "rank", os.environ["JAX_PROCESS_ID"], "of", os.environ["JAX_NUM_PROCESSES"],
      "on", os.uname().nodename, os.getpid(), flush=True)
note = noted(os.environ)
for step in range(10 * attempt, 10 * attempt + (10000 if attempt < 3 else 5)):
    note(step)
    time.sleep(0.05)
"""

_DRIVER = """
import sys
from pathlib import Path
from jaxnet.operations.launchers.hosts import parse_list
from jaxnet.operations.launchers.ssh import launch_ssh
from jaxnet.operations.launchers.ssh_job import SshJob
folder = Path(sys.argv[1])
job = SshJob([sys.executable, str(folder / "rank.py")], "/", parse_list("host1,host2"), {"PYTHONPATH": sys.argv[2]},
             config=folder / "ssh_config", grace_seconds=0.5, max_restarts=3, min_hosts=1, silence_seconds=3,
             look_seconds=0.5)
sys.exit(launch_ssh(job))
"""

# The launcher is on host0; the links are switched where the lab's first process is.
_HOSTS = """
import subprocess
from support.programs import Program, await_gone
from support.sshd import await_server, serve
folder, root = sys.argv[1:]
if rank > 0:
    serve(folder, rank)
    sys.exit()  # the server stays, until the lab ends
await_server("host1")
await_server("host2")

def link(state):
    subprocess.run(["nsenter", "--net=/proc/1/ns/net", "ip", "link", "set", "port1", state], check=True)

with Program([sys.executable, folder + "/driver.py", folder, root], PYTHONPATH=os.environ["PYTHONPATH"]) as job:
    lost, _ = job.wait_for("[0] attempt 1 rank 0 of 2 on host1", "[1] attempt 1 rank 1 of 2 on host2")
    link("down")
    job.wait_for("[0] attempt 2 rank 0 of 1 on host2")
    await_gone(int(lost.split()[-1]))  # while nobody reaches its host
    link("up")
    job.wait_for("[0] attempt 3 rank 0 of 2 on host1", "[1] attempt 3 rank 1 of 2 on host2")
    print("status", job.finish())
    for line in job.err:
        print(line)
"""


def test_a_host_whose_link_is_cut_is_left_out_until_the_link_is_mended(lab, tmp_path):
    write_keys(tmp_path, hosts=3)
    (tmp_path / "rank.py").write_text(_RANK)
    (tmp_path / "driver.py").write_text(_DRIVER)
    arguments = [str(tmp_path), str(ROOT)]
    with lab(_HOSTS, hosts=3, arguments=arguments, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}") as job:
        job.process.wait(2 * PATIENCE)  # twice that of the launcher's
        assert job.finish() == 0, job.err
        lines = [line.removeprefix("[0] ") for line in job.out if line.startswith("[0] ")]
    assert lines[0] == "status 0"
    said = [line for line in lines if line.startswith("launch: ")]
    assert said[0].startswith("launch: rank 0 on host1 exited with status 255 after "), lines
    assert said[1].startswith("launch: attempt 2 on host2; without host1 (")
    assert said[2] == "launch: host1 answers again; all save and start again, attempt 3"
    assert said[-1].startswith("launch: attempt 3: ended well after ")
