"""`jaxnet launch ssh` with a real sshd on each host of a lab, where nothing but ssh reaches the other host."""

import json

import pytest

from support.paced_digits import STEPS
from support.programs import PATIENCE, ROOT
from support.sshd import missing, write_keys
from support.training_runs import CONFIG

pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(missing()), reason=missing() or "never")]

# On host0 the test's own text runs once both servers answer; host1 has only its server.
_HOSTS = """
from support.programs import await_gone, jaxnet, write_program
from support.sshd import await_server, serve
folder = sys.argv[1]
serve(folder, rank)
if rank == 1:
    sys.exit()  # the server stays, until the lab ends
await_server("host1")

def launch(*words, hosts="host0,host1", options=()):
    return jaxnet("launch", "ssh", "--hosts", hosts, "--ssh-config", folder + "/ssh_config", *options, "--", *words)

def show(job):
    print("status", job.finish())
    for line in job.out + job.err:
        print("|", line, sep="")
"""

# A process that says who it is and who its child is, both of which ignore what can be ignored.
_STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = os.fork()
while child == 0: signal.pause()
print("pids", os.getpid(), child, os.uname().nodename)
"""


@pytest.fixture
def on_host0(lab, tmp_path):
    """`on_host0(text)`: the lines that `text`, run on host0, printed."""
    write_keys(tmp_path)

    def run(text):
        with lab(_HOSTS + text, arguments=[str(tmp_path)], PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}") as job:
            job.process.wait(2 * PATIENCE)  # twice that of the launcher on host0
            assert job.finish() == 0, job.err
            return [line.removeprefix("[0] ") for line in job.out if line.startswith("[0] ")]

    return run


def test_digits_train_on_two_hosts(on_host0, tmp_path):
    lines = on_host0(f"""
words = ["{ROOT}/train.py", "--config", "{CONFIG}", "--workdir", folder + "/run", "hosts=2"]
with launch(*words, options=["--logs", folder + "/logs"]) as job:
    show(job)
""")
    assert lines[0] == "status 0", lines
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["processes"], summary["finished"], summary["steps"]) == (2, True, STEPS)
    assert summary["accuracy"] > 0.5
    assert "|[0] " + (tmp_path / "logs" / "host0.log").read_text().splitlines()[-1] in lines
    assert (tmp_path / "logs" / "host1.log").exists()


def test_each_process_runs_on_its_host_with_what_was_sent(on_host0):
    lines = on_host0("""
os.environ.update(SECRET="s", NCCL_DEBUG="--a b", GIVEN="it's $HOME\\nand more")
code = "import os; print([os.environ.get(name) for name in ('SECRET', 'NCCL_DEBUG', 'GIVEN')], os.uname().nodename)"
with launch(sys.executable, "-c", code, options=["--env", "GIVEN"]) as job:
    print("status", job.finish(), sorted(job.out))
""")
    sent = "[None, '--a b', \"it's $HOME\\nand more\"]"
    expected = [f"[0] {sent} host0", f"[1] {sent} host1"]
    assert lines == [f"status 0 {expected}"]


def test_one_fails_and_the_stubborn_other_is_killed(on_host0):
    lines = on_host0(f"""
text = '''{_STUBBORN}
if os.uname().nodename == "host1":
    while not os.path.exists("started"): time.sleep(0.01)
    sys.exit(7)
open("started", "w").close()
while True: signal.pause()
'''
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.ssh import launch_ssh
from jaxnet.operations.launchers.ssh_job import SshJob
from pathlib import Path
job = SshJob([sys.executable, "-c", text], folder, [Host("host0"), Host("host1")],
             dict(PYTHONUNBUFFERED="1"), config=Path(folder, "ssh_config"), grace_seconds=0.2)
print("status", launch_ssh(job))
""")
    assert lines[-1] == "status 7"
    pids = [line.split()[2:4] for line in lines if " pids " in line]
    assert len(pids) == 2


def test_nothing_outlives_a_launcher_that_is_killed(on_host0):
    lines = on_host0(f"""
text = '''{_STUBBORN}
while True: signal.pause()
'''
with launch(sys.executable, "-c", text) as job:
    pids = [int(pid) for line in job.wait_for("[0] pids", "[1] pids") for pid in line.split()[2:4]]
    os.kill(job.pid, signal.SIGKILL)
    await_gone(*pids)
    print("gone", len(pids))
""")
    assert lines == ["gone 4"]


def test_a_signal_reaches_the_processes(on_host0):
    lines = on_host0("""
text = '''
import os, signal, sys
def stop(number, _):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready")
while True: signal.pause()
'''
with launch(sys.executable, "-c", text) as job:
    job.wait_for("[0] ready", "[1] ready")
    os.kill(job.pid, signal.SIGTERM)
    print("status", job.finish(), sorted(job.out[-2:]), job.err)
""")
    said = "launch: passed SIGTERM on to ranks 0-1; a second one kills"
    assert lines == [f"status 0 {['[0] saved', '[1] saved']} {[said]}"]


def test_a_host_whose_key_is_unknown_or_another_is_refused(on_host0):
    lines = on_host0("""
from pathlib import Path
known = Path(folder, "known_hosts")
right = known.read_text().splitlines()
swapped = "host0 " + right[1].split(" ", 1)[1]
for text in (right[1], swapped):
    known.write_text(text + "\\n")
    with launch("true", options=["--port", "1234"]) as job:
        show(job)
""")
    assert lines[0] == lines[2] == "status 2"
    for line in (lines[1], lines[3]):
        assert line.startswith("|error: cannot start on host0: Host key verification failed.; `ssh host0 "), lines
