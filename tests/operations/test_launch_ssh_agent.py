"""The agent on a host ends its processes when the launcher is gone or silent, and reports how they ended."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from jaxnet.cluster.addresses import Address
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.ssh import show_ssh
from jaxnet.operations.launchers.ssh_job import HERE, SshJob, orders, ssh_command
from support.programs import PATIENCE, await_gone

_LOADER = ssh_command(Host("n1"), sys.executable, None)[-1]
_TEXT = (HERE / "ssh_agent.py").read_text()
# The child outlives its parent's SIGTERM, as a data worker that hangs.
_STUBBORN = "trap '' TERM; sleep 600 & echo pids $$ $!; wait"


@contextmanager
def agent(*command, folder="/", slots=1, grace=10.0, silence=60.0, attempt=None):
    """One that runs `command`; `process.mark` is that of its order."""
    job = SshJob(command, folder, [Host("n1", slots=slots)], grace_seconds=grace, silence_seconds=silence)
    [order] = orders(job, Address("n1", 77), None, attempt)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", _LOADER], text=True, **pipes) as process:
        process.mark = order["mark"]
        process.stdin.write(json.dumps(_TEXT) + "\n" + json.dumps(order) + "\n")
        process.stdin.flush()
        yield process


def pids(process):
    return [int(pid) for pid in process.stdout.readline().split()[-2:]]


def test_the_end_of_the_input_ends_all():
    with agent("sh", "-c", _STUBBORN) as process:
        started = pids(process)
        process.stdin.close()
        await_gone(*started)
        assert process.wait(PATIENCE) == 137


def test_silence_ends_all():
    """As when the network is gone and nothing says so."""
    with agent("sh", "-c", _STUBBORN, silence=0.5) as process:
        started = pids(process)
        await_gone(*started)
        assert process.wait(PATIENCE) == 137


def test_a_kill_of_the_agent_itself_reaches_its_processes():
    with agent("sh", "-c", "echo pids $$ $$; exec sleep 600") as process:
        started = pids(process)
        process.kill()
        await_gone(*started)


def test_one_fails_and_the_stubborn_other_is_killed_after_the_grace():
    script = f'if [ "$JAX_PROCESS_ID" = 1 ]; then exit 7; fi; {_STUBBORN}'
    with agent("sh", "-c", script, slots=2, grace=0.1) as process:
        assert process.wait(PATIENCE) == 7


def test_several_are_told_apart():
    with agent("sh", "-c", "echo out; echo err >&2", slots=2) as process:
        out, err = process.stdout.read(), process.stderr.read()  # the input stays open until both have ended
        assert sorted(out.splitlines()) == ["[0] out", "[1] out"]
        assert sorted(err.splitlines()) == ["[0] err", "[1] err"]


def test_a_signal_is_passed_on():
    with agent("sh", "-c", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done") as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\nSIGTERM\n")
        process.stdin.flush()
        assert process.stdout.readline() == "saved\n"
        assert process.wait(PATIENCE) == 0


def test_progress_is_told_once_all_have_done_a_step_and_no_file_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = """
step() { echo "$((20 + JAX_PROCESS_ID)) 0.0 $((30 + JAX_PROCESS_ID))" > "$JAXNET_PROGRESS_FILE"; }
[ "$JAX_PROCESS_ID" = 1 ] || step
echo "$JAXNET_ATTEMPT"
until [ -e go ]; do sleep 0.05; done
step
printf 'no end of line'
"""
    gate = tmp_path / "go"
    with agent("sh", "-c", script, folder=str(tmp_path), slots=2, attempt=7) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        gate.touch()
        lines += process.stdout.readlines()
    told = [line.split() for line in lines if line.startswith(process.mark)]
    assert sorted(line for line in lines if not line.startswith(process.mark)) == [
        "[0] 7\n",
        "[0] no end of line\n",
        "[1] 7\n",
        "[1] no end of line\n",
    ]
    assert {(words[1], words[3]) for words in told} == {("21", "31")}
    assert list(tmp_path.iterdir()) == [gate]


def test_a_job_that_is_not_started_again_tells_nothing():
    with agent("sh", "-c", 'echo "$JAXNET_PROGRESS_FILE$JAXNET_ATTEMPT"') as process:
        assert process.stdout.read() == "\n"


@pytest.mark.parametrize(("command", "folder"), [("/no/such", "/"), ("true", "/no/such")])
def test_what_cannot_be_started_is_one_line(command, folder):
    with agent(command, folder=folder) as process:
        _, err = process.communicate()
        assert process.returncode == 1
        assert err.startswith(f"error: cannot run {command} in {folder}: ")
        assert err.count("\n") == 1


def test_host_keys_are_checked_and_nothing_is_asked():
    words = ssh_command(Host("n1", "ada", 2222), "/py", None)
    assert "StrictHostKeyChecking=yes" in words
    assert "BatchMode=yes" in words
    assert words[-6:-1] == ["ada", "-p", "2222", "--", "n1"]
    assert " 'exec /py -I -S -c " in show_ssh(SshJob(["x"], "/", [Host("n1")], python="/py"))


@pytest.mark.parametrize(("restarts", "silence", "alive"), [(0, 60, 20), (1, 15, 5)])
def test_both_sides_take_the_same_silence_for_a_lost_link(restarts, silence, alive):
    shown = show_ssh(SshJob(["x"], "/", [Host("n1")], max_restarts=restarts))
    assert f" -o ServerAliveInterval={alive} " in shown
    assert " -o ServerAliveCountMax=3 " in shown
    assert f'"silence_seconds": {silence}.0' in shown
    assert ('"JAXNET_ATTEMPT": "1"' in shown) == bool(restarts)


def test_processes_are_numbered_host_by_host():
    job = SshJob(["x"], "/", [Host("n1", slots=2), Host("n2")])
    own = [process for order in orders(job, Address("n1", 77), Address("10.0.0.1", 77)) for process in order["own"]]
    assert [process["JAX_PROCESS_ID"] for process in own] == ["0", "1", "2"]
    assert {process["JAX_NUM_PROCESSES"] for process in own} == {"3"}
    assert [process.get("JAX_COORDINATOR_BIND_ADDRESS") for process in own] == ["10.0.0.1:77", None, None]
