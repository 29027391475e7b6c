"""However a lab ends, and whatever refuses it: nothing runs on, and the next one starts."""

import os
import re
import signal
import sys

import pytest

from support.lab import await_unused, descendants, networks_of
from support.programs import Program, await_gone
from support.training_runs import await_path

pytestmark = pytest.mark.processes


def test_the_first_failure_ends_all_and_its_status_is_passed_on(lab):
    text = """
if rank == 2:
    call("host0").close()
    sys.exit(7)
if rank == 0:
    with listen() as server:
        server.accept()[0].close()
signal.pause()
"""
    with lab(text, hosts=3) as job:
        assert job.finish() == 7
        assert re.fullmatch(r"launch: rank 2 exited with status 7 after .* s; ended the other 2", job.err[-1])


# Ranks that ignore what can be ignored, each with a daemon in a session of its own, and end when they are told how.
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"daemon\\n")  # print writes the end of the line by itself
        signal.pause()
    os._exit(0)
os.wait()
os.write(1, b"ready\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
with open(sys.argv[1]) as status:
    sys.exit(int(status.read()))
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [("success", 0), ("failure", 3), ("kill -9 of the launcher", -9), ("kill -9 of the first process", 137)],
)
def test_nothing_survives(lab, tmp_path, ending, status):
    order = tmp_path / "order"
    with lab(STUBBORN, "--rate", "1gbit", arguments=[str(order)]) as job:
        job.wait_for("[0] ready", "[1] ready", "[0] daemon", "[1] daemon")
        everything = descendants(job.pid)
        networks = networks_of(everything) - networks_of([job.pid])
        assert len(everything) == 6, "the first process, its keeper, two ranks, two daemons"
        assert len(networks) == 3, "two hosts and the switch"
        if status in (-9, 137):
            os.kill(job.pid if status == -9 else everything[0], signal.SIGKILL)
        else:
            (tmp_path / "writing").write_text(str(status))
            (tmp_path / "writing").rename(order)
        assert job.finish() == status
        if status == 137:
            assert job.err == ["launch: the lab's first process was killed by SIGKILL (9), and all others with it"]
        await_gone(*everything)
        await_unused(networks)
    with lab("print(socket.gethostname())", "--rate", "1gbit") as job:
        assert job.finish() == 0, job.err
        assert sorted(job.out) == ["[0] host0", "[1] host1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_for_an_orderly_stop(lab, number):
    """A signal to the whole group, as a terminal sends Ctrl-C."""
    text = """
def stop(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("ready")
while True:
    signal.pause()
"""
    with lab(text, "--rate", "1gbit") as job:
        job.wait_for("[0] ready", "[1] ready")
        everything = descendants(job.pid)
        os.killpg(job.pid, number)
        assert job.finish() == 0, job.err
        assert sorted(job.out[-2:]) == ["[0] saved", "[1] saved"]
        assert job.err == [f"launch: passed {number.name} on to ranks 0-1; a second one kills"]
        await_gone(*everything)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_lab_that_is_still_being_made(lab, tmp_path, number):
    began = tmp_path / "began"
    path = false_tc(tmp_path, f"touch {began}; exec sleep 1000")
    with lab("print('ran')", "--rate", "1gbit", PATH=path) as job:
        await_path(began)
        everything = descendants(job.pid)
        os.kill(job.pid, number)
        assert job.finish() == 128 + number
        assert (job.out, job.err) == ([], [])
        await_gone(*everything)


def false_tc(folder, script):
    """A PATH on which `tc` does something else."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "tc").write_text(f"#!/bin/sh\n{script}\n")
    (tools / "tc").chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def test_two_labs_at_once(lab):
    """They have the same names and addresses; one is killed, the other goes on."""
    text = """
def meet(word):
    if rank == 0:
        with listen() as server, server.accept()[0] as other:
            other.sendall(sys.argv[1].encode())
    else:
        with call("host0") as other:
            print(word, other.recv(100).decode())

def again(*_):
    meet("again")
    sys.exit(0)

signal.signal(signal.SIGTERM, again)
meet("met")
print("ready")
while True:
    signal.pause()
"""
    with lab(text, arguments=["first"]) as first, lab(text, "--rate", "1gbit", arguments=["second"]) as second:
        for job in (first, second):
            job.wait_for("[0] ready", "[1] ready")
        os.kill(first.pid, signal.SIGKILL)
        first.finish()
        os.kill(second.pid, signal.SIGTERM)
        assert second.finish() == 0, second.err
        assert "[1] met first" in first.out
        assert [line for line in second.out if line.startswith("[1] ")] == [
            "[1] met second",
            "[1] ready",
            "[1] again second",
        ]


CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21


def lab_without(capability):
    """`jaxnet lab`, started as root without one of root's capabilities, as in a container."""
    command = [sys.executable, "-m", "jaxnet", "lab", "--hosts", "2", "--rate", "1gbit", "--", "true"]
    drop = f"ctypes.CDLL(None).prctl(24, {capability}, 0, 0, 0)"  # PR_CAPBSET_DROP
    return Program([sys.executable, "-c", f"import ctypes, os; {drop}; os.execv({command[0]!r}, {command!r})"])


def refusal(job):
    """The one line that a lab prints which the machine refuses."""
    assert job.finish() == 2
    assert job.out == []
    (line,) = job.err
    return line


@pytest.mark.usefixtures("lab")
def test_without_the_right_to_make_namespaces():
    with lab_without(CAP_SYS_ADMIN) as job:
        assert refusal(job).startswith(
            "error: the kernel refuses a lab its own namespaces (unshare: Operation not permitted); run it as root"
        )


@pytest.mark.usefixtures("lab")
def test_without_the_right_to_make_networks():
    with lab_without(CAP_NET_ADMIN) as job:
        line = refusal(job)
        assert line.startswith("error: the kernel refuses `ip link add switch type bridge` (RTNETLINK answers: ")
        assert line.endswith("root with CAP_NET_ADMIN")


@pytest.mark.usefixtures("lab")
def test_without_the_right_to_mount():
    """As under AppArmor, which has no switch of its own."""
    code = """
from errno import EACCES
from jaxnet.cli.main import main
from jaxnet.operations.lab import kernel
def mount_new(kind, where):
    raise OSError(EACCES, "Permission denied", "mount")
kernel.mount_new = mount_new
main(["lab", "--hosts", "1", "--", "true"])
"""
    with Program([sys.executable, "-c", code]) as job:
        assert "namespaces (mount: Permission denied); run it as root" in refusal(job)


def test_a_kernel_without_tbf(lab, tmp_path):
    path = false_tc(tmp_path, 'echo "Error: Specified qdisc kind is unknown." >&2; exit 2')
    with lab("print('ran')", "--rate", "1gbit", PATH=path) as job:
        line = refusal(job)
        assert line.startswith("error: the kernel refuses `tc qdisc add dev eth0 root tbf rate 1000000000bit")
        assert "(Error: Specified qdisc kind is unknown.); a lab needs its veth, bridge and tbf" in line
