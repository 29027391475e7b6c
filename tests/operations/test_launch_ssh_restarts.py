"""`jaxnet launch ssh --max-restarts`: who takes part in each attempt; the tests cut connections."""

import json
import os
import signal
import sys
import textwrap
import threading

import pytest

from jaxnet.cluster.progress import read_progress
from jaxnet.errors import InputError
from jaxnet.operations.launchers import ssh_client
from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.ssh import launch_ssh
from jaxnet.operations.launchers.ssh_client import ProgressFile
from jaxnet.operations.launchers.ssh_hosts import SshMembers
from jaxnet.operations.launchers.ssh_job import SshJob
from jaxnet.operations.supervise import Ended
from support.fake_ssh import FakeNetwork
from support.programs import ROOT, Program, write_program

LOOK = 0.01  # seconds

# A process that says where it is; it saves and ends at SIGTERM, and goes on until then.
RANK = """
import os, signal, sys, time
from jaxnet.cluster.progress import noted
host, attempt = os.environ["FAKE_HOST"], int(os.environ["JAXNET_ATTEMPT"])
rank, count = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("attempt", attempt, "rank", rank, "of", count, "on", host, os.environ["JAX_COORDINATOR_ADDRESS"])
note = noted(os.environ)
def go_on():
    for step in range(10 * attempt, 10000):
        note(step)
        time.sleep(0.05)
"""

DRIVER = """
import dataclasses, sys
from jaxnet.operations.launchers.hosts import parse_list
from jaxnet.operations.launchers.ssh import launch_ssh
from jaxnet.operations.launchers.ssh_job import SshJob
from jaxnet.errors import exit_cleanly
job = SshJob([sys.executable, {program!r}], "/", parse_list({hosts!r}, "slots"), {{"PYTHONPATH": {path!r},
             "PYTHONUNBUFFERED": "1"}}, grace_seconds=0.5, look_seconds=0.2)
exit_cleanly(lambda: launch_ssh(dataclasses.replace(job, **{options!r})))
"""


@pytest.fixture
def network(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    return FakeNetwork(folder)


@pytest.fixture
def start(tmp_path, network):
    """`start(text, hosts, **options)`: a job with options of `SshJob`; afterwards it has left no temporary file."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(text, hosts="a,b,c", **options):
        program = write_program(tmp_path, RANK + textwrap.dedent(text))
        driver = DRIVER.format(program=program, hosts=hosts, path=str(ROOT), options={"max_restarts": 3} | options)
        command = [sys.executable, write_program(tmp_path, driver, "driver.py")]
        return Program(command, PATH=network.path(os.environ), TMPDIR=str(scratch))

    yield run
    assert not list(scratch.iterdir())


def places(job, attempt):
    """`{host: (rank, count)}` of an attempt."""
    lines = [line.split() for line in job.out if f" attempt {attempt} rank " in line]
    return {words[8]: (int(words[4]), int(words[6])) for words in lines if len(words) == 10}


def test_a_lost_host_is_left_out_and_taken_in_again(start, network):
    with start("if attempt < 3: go_on()\nnote(77)", min_hosts=2) as job:
        job.wait_for("[0] attempt 1", "[1] attempt 1", "[2] attempt 1")
        network.down("a")
        job.wait_for("[0] attempt 2", "[1] attempt 2")
        network.up("a")
        assert job.finish() == 0, job.err
    assert [places(job, attempt) for attempt in (1, 2, 3)] == [
        {"a": (0, 3), "b": (1, 3), "c": (2, 3)},
        {"b": (0, 2), "c": (1, 2)},
        {"a": (0, 3), "b": (1, 3), "c": (2, 3)},
    ]
    said = [line for line in job.err if line.startswith("launch: ")]
    assert said[0].startswith("launch: rank 0 on a exited with status 255 after ")
    assert said[0].endswith(" s; ended the other 2; all start again in 1 s, attempt 2")
    assert said[1] == "launch: attempt 2 on b, c; without a (ssh: connect to host a port 22: No route to host)"
    assert said[2] == "launch: a answers again; all save and start again, attempt 3"
    assert said[3].startswith("launch: attempt 1: rank 0 on a exited with status 255 after ")
    assert " (error: the connection to a failed or was lost (ssh status 255)); the next step came " in said[3]
    assert said[4].startswith("launch: attempt 2: stopped to go on with more after ")
    assert "; the next step came " in said[4]
    assert said[5].startswith("launch: attempt 3: ended well after ")
    assert said[5].endswith(" s, at step 77")
    assert len({line.split()[9] for line in job.out if line.startswith("[1] attempt")}) == 3  # a port for each attempt


def test_a_process_that_fails_is_started_again_on_all(start):
    with start("if attempt == 1 and host == 'b': sys.exit(3)\nif attempt == 1: go_on()\nnote(5)") as job:
        assert job.finish() == 0, job.err
    assert places(job, 2) == {"a": (0, 3), "b": (1, 3), "c": (2, 3)}
    assert not any("without" in line for line in job.err)


def test_a_number_of_processes_that_does_not_fit_is_passed_over(start, network):
    network.down("d")
    text = """
    if count == 3:
        sys.exit("error: batch_size=64 cannot be divided among 3 processes")
    note(1)
    """
    with start(text, hosts="a,b,c,d", min_hosts=2) as job:
        assert job.finish() == 0, job.err
    assert set(places(job, 3)) == {"a", "b"}
    assert any(line.endswith(": on with fewer than 3 processes, attempt 3") for line in job.err), job.err


def test_a_host_that_fails_every_time_is_left_out_for_good(start):
    text = "note(1)\nif host == 'b': os.kill(os.getpid(), signal.SIGKILL)\nif count == 3: go_on()"
    with start(text, min_hosts=2, max_restarts=1) as job:
        assert job.finish() == 0, job.err
    assert places(job, 3) == {"a": (0, 2), "c": (1, 2)}
    assert any(
        line.endswith("are used up (--max-restarts): on with the others, without b, attempt 3") for line in job.err
    )


def test_too_few_answer(start, network):
    network.down("b", "c")
    with start("", min_hosts=2, max_restarts=1) as job:
        assert job.finish() == 2
    few = "1 of 3 hosts answer, wanted 2: without b (ssh: connect to host b port 22: No route to host); c (ssh: "
    assert job.err[0].startswith("launch: " + few)
    assert job.err[0].endswith("; asked again in 1 s")
    assert job.err[1].startswith("error: " + few)
    assert job.err[1].endswith("; 1 restarts without progress are used up (--max-restarts)")
    assert len(job.err) == 2


def test_too_few_are_left(start, network):
    with start("go_on()", hosts="a,b", max_restarts=1) as job:
        job.wait_for("[0] attempt 1", "[1] attempt 1")
        network.down("b")
        assert job.finish() == 255
    assert sum("1 of 2 hosts answer, wanted 2: without b (" in line for line in job.err) == 1


def test_a_coordinator_that_was_given_is_an_address_of_the_first_host(start, network):
    network.down("a")
    with start("", min_hosts=2, max_restarts=1, coordinator="a.example") as job:
        assert job.finish() == 2
    assert job.err[-1].startswith(
        "error: --coordinator a.example is an address of a, which does not take part; leave it"
    )


def test_told_to_end_all_save_and_nothing_starts_again(start, network):
    network.down("c")
    with start("go_on()", min_hosts=2) as job:
        job.wait_for("[0] attempt 1", "[1] attempt 1")
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish() == 0, job.err
    assert not places(job, 2)


def test_a_host_has_to_answer_twice(network, monkeypatch):
    monkeypatch.setenv("PATH", network.path(os.environ))
    network.down("b")
    hosts = SshMembers(SshJob(["x"], "/", [Host("a"), Host("b")], max_restarts=1, min_hosts=1, look_seconds=LOOK))
    [rank] = hosts.gather(1)
    assert rank.where == "a"
    over = Once(network)
    assert hosts.await_more(over) == "b answers again"
    assert over.looks == ["down", "up", "down", "up", "up"]


class Once(threading.Event):
    """Never over; before the looks it has the link of b go up, down, and up again."""

    def __init__(self, network):
        super().__init__()
        self._network, self.looks = network, []

    def wait(self, timeout=None):
        if timeout != LOOK:
            return super().wait(timeout)
        state = "up" if len(self.looks) in (1, 3, 4) else "down"
        if self.looks and state != self.looks[-1]:
            self._network.up("b") if state == "up" else self._network.down("b")
        self.looks.append(state)
        return False


def test_a_number_that_never_began_is_passed_over_once_another_was_tried(network, monkeypatch):
    """Before that, it is a mistake in the configuration that ends the job."""
    monkeypatch.setenv("PATH", network.path(os.environ))
    hosts = SshMembers(SshJob(["x"], "/", [Host("a"), Host("b")], max_restarts=1, min_hosts=1))
    mistake = {"failed": Ended(0, 2, 1.0, "a"), "always": False, "began": False}
    assert [rank.where for rank in hosts.gather(1)] == ["a", "b"]
    assert hosts.without(**mistake) is None
    network.down("b")
    assert [rank.where for rank in hosts.gather(2)] == ["a"]
    network.up("b")
    assert [rank.where for rank in hosts.gather(3)] == ["a", "b"]
    assert hosts.without(**mistake) == "fewer than 2 processes"
    assert [rank.where for rank in hosts.gather(4)] == ["a"]


def test_slots_are_counted_as_processes(start, network):
    network.down("b")
    with start("note(attempt)", hosts="a:2,b:2", min_hosts=1) as job:
        assert job.finish() == 0, job.err
    assert sorted(line.split(" on ")[0] for line in job.out) == [
        "[0] [0] attempt 1 rank 0 of 2",
        "[0] [1] attempt 1 rank 1 of 2",
    ]


def test_progress_by_the_clock_of_this_host(tmp_path):
    progress = ProgressFile("mark", str(tmp_path / "0"))
    assert not progress.take(b"mark of another kind of line\n")
    assert not progress.take(b"a line\n")
    assert read_progress(tmp_path / "0") is None
    assert progress.take(b"mark 21 0.5 21\n")
    first = read_progress(tmp_path / "0")
    assert progress.take(b"mark 21 9.5 1234\n")
    assert read_progress(tmp_path / "0") == first._replace(step=1234)


def test_a_full_disk_costs_logs_and_progress_and_not_the_output(tmp_path):
    script = "echo one; echo mark 21 0.5 21; echo two >&2; echo three; exit 7"
    order = {"ssh": ["sh", "-c", script], "lines": [], "log": "/dev/full", "beat_seconds": 60, "mark": "mark"}
    environment = {"JAXNET_SSH_ORDER": json.dumps(order), "JAXNET_PROGRESS_FILE": "/dev/full"}
    with Program([sys.executable, "-IS", ssh_client.__file__], **environment) as connection:
        assert connection.finish() == 7
    assert (connection.out, connection.err) == (["one", "three"], ["two"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_hosts": 1}, "--min-hosts 1: give --max-restarts too"),
        ({"min_hosts": 3, "max_restarts": 1}, "--min-hosts 3: there are 2 hosts"),
    ],
)
def test_a_number_that_makes_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        launch_ssh(SshJob(["x"], "/", [Host("a"), Host("b")], **options))
