"""`jaxnet launch slurm` with a real controller and two real nodes, on the hosts of a lab."""

import json

import pytest

from support.paced_digits import STEPS
from support.programs import ROOT
from support.slurm import missing, write_conf
from support.training_runs import CONFIG

pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(missing()), reason=missing() or "never")]

PATIENCE = 240.0  # two starts of a training

# On host0 the test's own text runs once both nodes are there; host1 is only a node.
_HOSTS = """
import subprocess
from pathlib import Path
from support.programs import jaxnet
from support.slurm import serve
folder = Path(sys.argv[1])
serve(rank)
if rank == 1:
    sys.exit()  # the node stays, until the lab ends
os.chdir(folder)

def launch(*words, options=()):
    slurm = dict(SLURM_CONF=os.environ["SLURM_CONF"], PYTHONPATH=os.environ["PYTHONPATH"])
    return jaxnet("launch", "slurm", "--nodes", "2", *options, "--", *words, **slurm)

def show(job):
    print("status", job.finish())
    for line in job.out + job.err:
        print("|", line, sep="")

def until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

def state():
    shown = subprocess.check_output(["scontrol", "--oneliner", "show", "job", "1"], text=True)
    return dict(word.partition("=")[::2] for word in shown.split())["JobState"]
"""


@pytest.fixture
def on_host0(lab, tmp_path):
    """`on_host0(text)`: the lines that `text`, run on host0, printed."""
    environment = write_conf(tmp_path) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}

    def run(text):
        with lab(_HOSTS + text, arguments=[str(tmp_path)], **environment) as job:
            job.process.wait(PATIENCE)
            said = [*job.err, *(path.read_text() for path in tmp_path.glob("*.out"))]
            assert job.finish() == 0, "\n".join(said)
            return [line.removeprefix("[0] ") for line in job.out if line.startswith("[0] ")]

    return run


def test_a_status_and_what_was_sent(on_host0, tmp_path):
    """One process that fails ends the other. `--wait` has sbatch pass on the highest status of all: of SIGTERM."""
    on_host0("""
code = '''
import os, sys, time
print(os.uname().nodename, os.environ["JAX_PROCESS_ID"], os.environ["JAX_NUM_PROCESSES"], sys.argv[1:], flush=True)
if os.environ["JAX_PROCESS_ID"] == "0":
    open("up", "w").close()
    time.sleep(600)
while not os.path.exists("up"): time.sleep(0.1)  # a task that still starts is killed, and not told to end
sys.exit(7)
'''
options = ["--sbatch=--wait", "--before", "test -z $NOT_SET"]
with launch(sys.executable, "-c", code, "it's $HOME", "a\\nb", options=options) as job:
    show(job)
    assert job.process.returncode == 143, job.err
""")
    text = (tmp_path / "slurm-1.out").read_text()
    assert "srun: error: host1: task 1: Exited with exit code 7" in text
    assert """host1 1 2 ["it's $HOME", 'a\\nb']""" in text


@pytest.mark.slow
def test_digits_train_and_continue_after_the_time_limit_came_near(on_host0, tmp_path):
    on_host0(f"""
words = ["{ROOT}/train.py", "--config", "{CONFIG}", "--workdir", "run", "hosts=2"]
with launch(*words, options=["--requeue", "1", "--env", "PACE_SECONDS=0.1"]) as job:
    show(job)
metrics = folder / "run" / "metrics.jsonl"
until(lambda: metrics.exists() and metrics.read_text().count("\\n") > 5)
# What Slurm sends near the limit, which is a minute away at least.
subprocess.run(["scancel", "--batch", "--signal=USR1", "1"], check=True)
until(lambda: state() == "PENDING")
# Sooner than by itself, after two minutes; at once, the nodes still refuse what they have just ended.
subprocess.run(["scontrol", "update", "JobId=1", "StartTime=now+5"], check=True)
until(lambda: state() in ("COMPLETED", "FAILED"))
assert state() == "COMPLETED", state()
""")
    text = (tmp_path / "slurm-1.out").read_text()
    assert "The time limit is near: job 1 is queued again." in text
    assert "continuing run from step " in text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["processes"], summary["finished"], summary["steps"]) == (2, True, STEPS)
