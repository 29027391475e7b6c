"""`jaxnet.cluster.start` in real processes: what goes wrong is one line and status 2, never an abort."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from jaxnet.operations.launchers.free_port import free_port
from support.programs import Program, launch, write_program

pytestmark = pytest.mark.processes

START = """
import os
import sys
import jax
from jaxnet.cluster.agreement import check_agreement
from jaxnet.cluster.start import leave
from jaxnet.cluster.start import start
from jaxnet.errors import exit_cleanly

def addresses_listened_on():
    '''IPv4 addresses with a listening socket in this network namespace.'''
    rows = [line.split() for line in open("/proc/self/net/tcp").readlines()[1:]]
    hexadecimal = [row[1].partition(":")[0] for row in rows if row[3] == "0A"]
    return {".".join(str(byte) for byte in reversed(bytes.fromhex(text))) for text in hexadecimal}

def batch_threads():
    '''Whether the main thread is one that interrupts no other, and how many of the others are.'''
    batch = {task: os.sched_getscheduler(task) == os.SCHED_BATCH for task in map(int, os.listdir("/proc/self/task"))}
    return batch.pop(os.getpid()), sum(batch.values())
"""
ADD = (
    START
    + """
def main():
    cluster = start(timeout_seconds=30)
    from jax.experimental.multihost_utils import process_allgather
    total = int(process_allgather(jax.numpy.ones(1)).sum())
    print(f"\\nresult {total} {cluster.interface} {cluster.address}")
    print("batch", *batch_threads())
    print("listening", *addresses_listened_on())
    return 0

exit_cleanly(main, leave)
"""
)


@pytest.fixture
def program(tmp_path):
    def make(text):
        return write_program(tmp_path, text)

    return make


@pytest.fixture
def port():
    return free_port()


def place(rank, count, address):
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank)}


def only_error(**environment):
    """The one line that a process that starts in `environment` prints before it exits with status 2."""
    text = f"{START}\nexit_cleanly(lambda: start(timeout_seconds=1) and 0, leave)"
    with Program([sys.executable, "-c", text], **environment) as alone:
        assert alone.finish() == 2, alone.err
        assert alone.out == []
        assert len(alone.err) == 1, alone.err
        return alone.err[0]


def test_a_process_that_never_comes_is_named(port):
    error = only_error(**place(0, 3, f"127.0.0.1:{port}"))
    assert error.startswith(f"error: ranks 1-2 of 3 did not call rank 0 at 127.0.0.1:{port} within 1 s")


def test_a_coordinator_that_does_not_answer(port):
    error = only_error(**place(1, 2, f"127.0.0.1:{port}"))
    assert error.startswith(f"error: rank 1 on {socket.gethostname()} could not reach rank 0 at 127.0.0.1:{port}")
    assert "127.0.0.1 resolves to loopback on this host: with several hosts give an address" in error


def test_a_port_in_use(port):
    with socket.create_server(("127.0.0.1", port)):
        error = only_error(**place(0, 2, f"127.0.0.1:{port}"))
    assert f"cannot listen on port {port}: address already in use" in error


def test_a_coordinator_without_a_name(port):
    error = only_error(**place(1, 2, "no-such-host.invalid:1234"))
    assert "cannot resolve the coordinator's name 'no-such-host.invalid'" in error


def test_a_partial_set_of_variables():
    assert "JAX_PROCESS_ID missing beside" in only_error(JAX_COORDINATOR_ADDRESS="node1:1234", JAX_NUM_PROCESSES="2")


def test_an_interface_that_does_not_exist(port):
    error = only_error(JAXNET_NETWORK_INTERFACE="nope0", **place(0, 2, f"127.0.0.1:{port}"))
    present = ", ".join(name for _, name in socket.if_nameindex())
    assert error.endswith(f"has no such network interface; it has {present}")


def test_a_wrong_heartbeat_is_said_before_anyone_is_waited_for(port):
    error = only_error(JAXNET_HEARTBEAT_SECONDS="1", **place(0, 2, f"127.0.0.1:{port}"))
    assert error == "error: JAXNET_HEARTBEAT_SECONDS is 1; it must be at least 5"


def test_what_jax_cannot_detect_either():
    error = only_error(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert error.startswith("error: JAX could not join the processes that openmpi describes")
    assert error.endswith("set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each instead")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("jax.devices()", "JAX has already used its devices in this process"),
        ("jax.distributed.initialize(f'127.0.0.1:{PORT}', 1, 0)", "jax.distributed is initialised already"),
    ],
)
def test_too_late(program, port, first, message):
    text = f"{START}\nPORT = {port}\n{first}\nexit_cleanly(lambda: start(1) and 0)"
    with Program([sys.executable, program(text)], **place(0, 2, f"127.0.0.1:{port}")) as late:
        assert late.finish() == 2
        assert any(line.startswith(f"error: {message}") for line in late.err)


def test_a_single_process_does_nothing_and_twice_is_once(program):
    text = START + "one = start()\nprint(one.process_count, one is start(), jax.distributed.is_initialized())"
    with Program([sys.executable, program(text)]) as single:
        assert single.finish() == 0
        assert single.out == ["1 True False"]
    with Program([sys.executable, program(text)], **place(0, 1, "nowhere:1")) as single:
        assert single.finish() == 0
        assert single.out == ["1 True False"]


def test_processes_that_run_the_same_go_on_and_others_all_say_the_difference(program):
    text = (
        START
        + """
def main():
    cluster = start()
    check_agreement(cluster, {"config": "same"})
    print("agreed")
    version = "0.10.2" if cluster.process_index == 1 else "0.12.0"
    check_agreement(cluster, {"config": "same", "jax": version})
    return 0

exit_cleanly(main, leave)
"""
    )
    with launch(program(text), processes=3) as job:
        assert job.finish() == 2
        assert sorted(job.out) == [f"[{rank}] agreed" for rank in range(3)]
        difference = "jax is '0.12.0' on ranks 0, 2, '0.10.2' on rank 1; give all the same"
        assert sorted(job.err[:-1]) == [f"[{rank}] error: the processes differ: {difference}" for rank in range(3)]


def test_one_that_says_nothing_is_named(program):
    text = (
        START
        + """
def main():
    cluster = start()
    if cluster.process_index == 0:
        check_agreement(cluster, {}, timeout_seconds=0.5)
    sys.stdin.read() if cluster.process_index == 0 else __import__("signal").pause()
    return 0

exit_cleanly(main, leave)
"""
    )
    with launch(program(text)) as job:
        assert job.finish() == 2
        assert "[0] error: rank 1 of 2 did not say what it runs within 0.5 s" in job.err


@pytest.mark.parametrize("interface", ["lo", None])
def test_collectives_on_this_machine(program, interface):
    extra = {"JAXNET_NETWORK_INTERFACE": interface} if interface else {}
    with launch(program(ADD), **extra) as job:
        assert job.finish() == 0, job.err
        address = None if interface else "127.0.0.1"
        for rank in range(2):
            assert f"[{rank}] result 2 {interface} {address}" in job.out
            assert f"[{rank}] batch False 1" in job.out  # Gloo's


def test_tasks_of_slurm_meet_where_jax_would_look_for_them(program, port):
    """The variables of srun, with this machine as the only node."""
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NTASKS": "2",
    }
    with ExitStack() as running:
        text = program(ADD)
        tasks = [
            running.enter_context(
                Program(
                    [sys.executable, text],
                    SLURM_PROCID=str(rank),
                    SLURM_LOCALID=str(rank),
                    JAX_COORDINATOR_PORT=str(port),
                    **step,
                )
            )
            for rank in range(2)
        ]
        for task in tasks:
            assert task.finish() == 0, task.err
            assert "result 2 None 127.0.0.1" in task.out or "result 2 None ::1" in task.out


needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="Two hosts are emulated with network namespaces, which needs root and iproute2.",
)


@pytest.fixture
def two_hosts(network):
    """Two network namespaces joined by two networks, `ctl0` (10.77.0.x) and `data0` (10.78.0.x)."""
    hosts = [f"jaxnet{os.getpid()}{letter}" for letter in "ab"]
    with ExitStack() as cleanup:
        for host in hosts:
            ip("netns", "add", host)
            cleanup.callback(ip, "netns", "del", host)
            ip("-n", host, "link", "set", "lo", "up")
        for network, device in ((77, "ctl0"), (78, "data0")):
            ip(
                "link",
                "add",
                device,
                "netns",
                hosts[0],
                "type",
                "veth",
                "peer",
                "name",
                device,
                "netns",
                hosts[1],
            )
            for number, host in enumerate(hosts, 1):
                ip("-n", host, "addr", "add", f"10.{network}.0.{number}/24", "dev", device)
                ip("-n", host, "link", "set", device, "up")
        yield hosts


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@needs_namespaces
@pytest.mark.parametrize("interface", [None, "data0"])
def test_collectives_between_two_hosts(program, two_hosts, interface):
    """Whatever the hosts' own name resolves to; here, as on a stock Debian, often to loopback."""
    text, extra = program(ADD), {"JAXNET_NETWORK_INTERFACE": interface} if interface else {}
    with ExitStack() as running:
        ranks = [
            running.enter_context(
                Program(
                    ["ip", "netns", "exec", host, sys.executable, text],
                    **place(rank, 2, "10.77.0.1:4567"),
                    **extra,
                )
            )
            for rank, host in enumerate(two_hosts)
        ]
        for number, rank in enumerate(ranks, 1):
            assert rank.finish() == 0, rank.err
            own = f"10.78.0.{number}" if interface else f"10.77.0.{number}"
            assert f"result 2 {interface} {None if interface else own}" in rank.out
            assert own in rank.out[-1].split()
