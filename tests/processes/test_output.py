"""Output that nobody reads any more, or that a full disk does not take: nothing is killed or given up over it."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from support.paced_digits import STEPS
from support.programs import PATIENCE, ROOT, Program, clean_environment, write_program
from support.training_runs import CONFIG, await_path, saved_steps, summary

pytestmark = pytest.mark.processes

# A rank that says little or much, and takes its time to save.
SAVES = """
import os, signal, sys, time
folder, rank, chatty = sys.argv[1], os.environ["JAX_PROCESS_ID"], sys.argv[2] == "chatty"
def stop(number, _):
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    os.write(1, b"stopping\\n")
    open(f"{folder}/told-{rank}", "w").close()
    time.sleep(0.5)  # the save that it stands for
    open(f"{folder}/saved-{rank}", "w").close()
    sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
os.write(1, b"ready\\n")
while True:
    if chatty:
        os.write(1, b"step\\n")
    time.sleep(0.01)
"""


@contextmanager
def unread_after(command, *words, errors=subprocess.STDOUT, **environment):
    """The process of a `command` whose reader has left once each of the `words` was in a line of its own."""
    with subprocess.Popen(
        command,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wanted, seen = set(words), []
            while wanted and (line := process.stdout.readline()):
                seen.append(line)
                wanted -= {word for word in wanted if word in line}
            assert not wanted, seen
            process.stdout.close()
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("order", ["signal first", "chatty"])
def test_ctrl_c_ends_tee_as_well_and_the_ranks_still_save(order, tmp_path):
    """Which of the two the launcher meets first is left to chance in a terminal."""
    words = [write_program(tmp_path, SAVES), str(tmp_path), order]
    command = [sys.executable, "-m", "jaxnet", "launch", "local", "--processes", "2", "--", *words]
    with unread_after(command, "[0] ready", "[1] ready") as job:
        if order == "chatty":
            await_path(tmp_path / "told-0")
        os.kill(job.pid, signal.SIGINT)
        assert job.wait(PATIENCE) == 0
    assert (tmp_path / "saved-0").exists()
    assert (tmp_path / "saved-1").exists()


def test_a_job_that_nobody_reads_is_not_started_again(tmp_path):
    text = """
import sys, time
with open(sys.argv[1], "a") as starts:
    starts.write("started ")
while True:
    print("step")
    time.sleep(0.01)
"""
    command = [sys.executable, "-m", "jaxnet", "launch", "local", "--processes", "1", "--max-restarts", "3", "--"]
    with unread_after([*command, write_program(tmp_path, text), str(tmp_path / "starts")], "[0] step") as job:
        assert job.wait(PATIENCE) == 128 + signal.SIGTERM
    assert (tmp_path / "starts").read_text() == "started "


@pytest.mark.parametrize("where", ["> /dev/full", "> /dev/full 2>&1"])
def test_a_full_disk_under_the_output_of_a_launcher_costs_lines(where, tmp_path):
    text = """
import sys, time
for step in range(20):
    print("step", step)
    print("x" * 20_000)
    time.sleep(0.01)
open(sys.argv[1], "w").close()
sys.exit(7)
"""
    command = f"{sys.executable} -m jaxnet launch local --processes 1 -- {write_program(tmp_path, text)}"
    with Program(["bash", "-c", f"{command} {tmp_path}/ended {where}"]) as job:
        assert job.finish() == 7, job.err
        assert len(job.err) == (1 if where == "> /dev/full" else 0)
    assert (tmp_path / "ended").exists()


def train(workdir, *overrides):
    return [sys.executable, str(ROOT / "train.py"), "--config", str(CONFIG), "--workdir", str(workdir), *overrides]


def test_ctrl_c_ends_the_reader_of_a_run_as_well_and_it_saves(tmp_path):
    with unread_after(train(tmp_path), f"step {3:>6}/{STEPS}", PACE_SECONDS="0.2") as run:
        os.kill(run.pid, signal.SIGINT)
        assert run.wait(PATIENCE) == 0
    stopped = summary(tmp_path)
    assert 3 <= stopped["steps"] < STEPS
    assert saved_steps(tmp_path) == [stopped["steps"]]


def test_a_full_disk_under_a_run_costs_what_is_said_traced_and_written_for_a_person(tmp_path):
    (tmp_path / "hlo").touch()  # what stands in the way is as good as a full disk
    (tmp_path / "profile").touch()
    words = train(tmp_path, "log.hlo=true", "profile.start=5", "profile.steps=2")
    with Program(["sh", "-c", 'exec "$@" > /dev/full', "sh", *words]) as run:
        assert run.finish() == 0, run.err
        warnings = [line for line in run.err if line.startswith("warning: ")]
        assert warnings == run.err
    assert len(warnings) == 2
    assert warnings[0] == f"warning: {tmp_path}/hlo cannot be written: File exists; training goes on without"
    assert warnings[1].startswith(f"warning: no trace in {tmp_path}/profile/process_0: ")
    assert summary(tmp_path)["finished"]
