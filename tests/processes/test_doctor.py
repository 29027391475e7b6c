"""`jaxnet doctor` in real processes, on this machine and on hosts of a lab: each planted fault is found, and no other.

The faults are real ones where a test can make them (packages, mounts, routes, links, variables). A clock of its own
cannot be given to one process, so there the program of that rank shifts what `time.time` says.
"""

import json
import re
import shutil
import socket

import pytest

from jaxnet.operations.launchers.free_port import free_port
from support.programs import ROOT, jaxnet, write_program

pytestmark = pytest.mark.processes

# A rank: what is planted on it, then the command as a user gives it.
DOCTOR = """
import os, subprocess, sys, time
rank = int(os.environ["JAX_PROCESS_ID"])
arguments = ["doctor", "--json", *sys.argv[1:]]

def own_mounts():
    '''Let what this rank mounts be seen by itself alone.'''
    from jaxnet.operations.lab import kernel
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.keep_mounts_private()

def sh(command):
    subprocess.run(command, shell=True, check=True)

{plant}
from jaxnet.cli.main import main
main(arguments)
"""


class Told:
    """What a doctor said."""

    def __init__(self, job, rank=0):
        self.status = job.finish()
        lines = [line.removeprefix(f"[{rank}] ") for line in job.out if line.startswith(f"[{rank}] ")]
        assert lines, job.err
        report = json.loads("".join(line for line in lines if "Gloo" not in line))
        self.findings = {finding["check"]: finding for finding in report["findings"]}
        assert report["healthy"] == (self.failed == {})
        assert all(finding["cure"] for finding in [*self.failed.values(), *self.warned.values()])

    def having(self, status):
        return {check: each for check, each in self.findings.items() if each["status"] == status}

    @property
    def failed(self):
        return self.having("failed")

    @property
    def warned(self):
        return self.having("warning")

    def only(self, check, *words):
        """Nothing failed but `check`, and what was found there says all these words."""
        assert self.status == 1
        assert list(self.failed) == [check], self.failed
        missing = [word for word in words if word not in self.failed[check]["found"]]
        assert not missing, f"{missing} not in: {self.failed[check]['found']}"


@pytest.fixture
def local(tmp_path):
    """`local(plant, *arguments)`: a doctor on two processes, where `plant` was run before on each."""

    def examine(plant, *arguments, **environment):
        program = write_program(tmp_path, DOCTOR.format(plant=plant))
        with jaxnet("launch", "local", "--processes", "2", "--", program, *arguments, **environment) as job:
            return Told(job)

    return examine


@pytest.fixture
def on_hosts(lab, tmp_path):
    """The same on hosts of a lab."""

    def examine(plant, *arguments, hosts=2, rate="200mbit", rank=0):
        program = write_program(tmp_path, DOCTOR.format(plant=plant), "doctor.py")
        options = ("--hosts", str(hosts), "--rate", rate)
        with jaxnet("lab", *options, "--", program, *arguments) as job:
            return Told(job, rank)

    return examine


def test_a_sound_job(local, tmp_path):
    told = local("", "--config", str(ROOT / "configs/digits.py"), "--workdir", str(tmp_path / "run"))
    assert (told.status, told.failed) == (0, {})
    assert told.findings["ranks"]["found"].startswith("all 2 came, on ")
    assert told.findings["data"]["found"] == "1,437 examples to train, 360 examples to test"
    for check in ("same versions", "same code", "same config", "clocks", "shared workdir", "devices", "all-reduce"):
        assert told.findings[check]["status"] == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]  # it has cleaned up


def test_sound_hosts(on_hosts):
    told = on_hosts("", "--expect-rate", "200mbit", hosts=3)
    assert (told.status, told.failed, told.warned) == (0, {}, {})
    assert told.findings["links"]["found"].startswith("3 between 3 hosts: ")


def test_another_version_of_a_package(local, tmp_path):
    planted = tmp_path / "planted/optax-0.0.1.dist-info"
    planted.mkdir(parents=True)
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: optax\nVersion: 0.0.1\n")
    told = local(f"if rank == 1: sys.path.insert(0, {str(planted.parent)!r})")
    told.only("same versions", ", '0.0.1' on rank 1")
    assert told.findings["all-reduce"]["found"] == "it could hang or crash: same versions failed"


def test_all_that_can_differ_at_once(local, tmp_path):
    """Other code, another config, another number of devices, a wrong clock, a directory of its own."""
    shutil.copytree(ROOT / "jaxnet", tmp_path / "copy/jaxnet", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "copy/jaxnet/comm/mesh.py").open("a") as file:
        file.write("# edited\n")
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    plant = f"""
real = time.time
arguments += ["--workdir", f"{tmp_path}/{{rank}}"]
if rank == 1:
    sys.path.insert(0, {str(tmp_path / "copy")!r})
    arguments += ["optimizer.learning_rate=0.5"]
    os.environ["JAX_NUM_CPU_DEVICES"] = "3"
    time.time = lambda: real() + 90
"""
    told = local(plant, "--config", str(ROOT / "configs/digits.py"))
    assert told.status == 1
    found = {check: each["found"] for check, each in told.failed.items()}
    assert list(found) == ["same code", "same config", "clocks", "shared workdir", "devices"]
    assert re.fullmatch(r"code of jaxnet/comm is '\w+' on rank 0, '\w+' on rank 1", found["same code"])
    assert found["same config"] == "optimizer.learning_rate is '0.002' on rank 0, '0.5' on rank 1"
    assert found["clocks"].startswith("rank 1's clock is 90.0 s ahead of the others")
    assert "rank 1 does not see what rank 0 wrote there" in found["shared workdir"]
    assert found["devices"] == "devices is '1' on rank 0, '3' on rank 1"


def test_proxies(local):
    told = local("", http_proxy="http://127.0.0.1:9")
    assert (told.status, list(told.warned)) == (0, ["proxies"])
    assert "http_proxy is set and no_proxy does not name the coordinator 127.0.0.1" in told.warned["proxies"]["found"]


def test_a_rank_that_falls_silent(local):
    plant = """
if rank == 1:
    import signal
    from jaxnet.operations.doctor import examine
    examine.check_clocks = lambda talk: signal.pause()
"""
    told = local(plant, "--timeout", "6")
    told.only("answers", "rank 1 did not answer at step 'clock/1/0/asked' within 6 s")


def test_an_all_reduce_that_hangs(local):
    plant = """
import threading
from jaxnet.operations.doctor import devices
if rank == 1: devices._time_sums = lambda elements: threading.Event().wait()
"""
    told = local(plant, "--timeout", "6")
    told.only("all-reduce", "rank 0: did not end within 6 s; rank 1: did not end within 6 s")


def alone(*arguments, **environment):
    with jaxnet("doctor", "--json", *arguments, **environment) as job:
        status = job.finish()
        return status, {each["check"]: each for each in json.loads("".join(job.out))["findings"]}


def place(rank, count, address):
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank)}


def test_ranks_that_never_come():
    status, found = alone("--timeout", "1", **place(0, 3, f"127.0.0.1:{free_port()}"))
    assert status == 1
    assert found["ranks"]["found"].startswith("ranks 1-2 of 3 did not call rank 0")


def test_a_port_that_another_program_has():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, found = alone("--timeout", "1", **place(0, 2, f"127.0.0.1:{port}"))
    assert status == 1
    assert f"cannot listen on port {port}: address already in use" in found["ranks"]["found"]


def test_a_coordinator_without_a_name():
    status, found = alone("--timeout", "1", **place(1, 2, "no-such-host.invalid:1234"))
    assert (status, found["coordinator"]["status"]) == (1, "failed")
    assert "cannot resolve no-such-host.invalid" in found["coordinator"]["found"]


def test_a_loopback_coordinator(on_hosts):
    plant = "os.environ['JAX_COORDINATOR_ADDRESS'] = '127.0.0.1:12321'"
    told = on_hosts(plant, "--timeout", "3")
    told.only("ranks", "rank 1 of 2 did not call rank 0 at 127.0.0.1:12321")
    assert "loopback: for processes of one host alone" in told.findings["coordinator"]["found"]


def test_a_link_that_is_down(on_hosts):
    plant = "if rank == 1: sh('ip link set eth0 down')"
    on_hosts(plant, "--timeout", "3").only("ranks", "rank 1 of 2 did not call rank 0 at 10.0.0.1:12321")


def test_two_hosts_that_cannot_reach_each_other(on_hosts):
    told = on_hosts("if rank == 1: sh('ip route add blackhole 10.0.0.3/32')", hosts=3)
    told.only("links", "between host1 (rank 1) and host2 (rank 2)", "between host2 (rank 2) and host1 (rank 1)")
    assert "host0" not in told.failed["links"]["found"]


def test_a_slow_link(on_hosts):
    shape = "tc qdisc replace dev eth0 root tbf rate 20mbit burst 32kb latency 100ms"
    told = on_hosts(f"if rank == 2: sh('{shape}')", hosts=3)
    told.only("slow hosts", "host2 (rank 2) sends at ", "the median host at ")


def test_an_own_name_that_is_loopback(on_hosts, tmp_path):
    plant = f"""
if rank == 1:
    own_mounts()
    lines = open("/etc/hosts").read().replace("10.0.0.2 host1", "127.0.1.1 host1")
    open({str(tmp_path / "hosts")!r}, "w").write(lines)
    sh("mount --bind {tmp_path}/hosts /etc/hosts")
"""
    told = on_hosts(plant)
    assert (told.status, list(told.warned)) == (0, ["own name"])
    assert "rank 1: host1 is 127.0.1.1, a loopback address" in told.warned["own name"]["found"]


@pytest.mark.parametrize(
    ("options", "check", "words"),
    [
        ("size=1m", "free space", ["rank 1: 1 MiB free in ", "wanted 1 GiB or more"]),
        ("ro", "workdir", ["rank 1: ", "cannot be written to: read-only file system"]),
    ],
)
def test_a_directory_of_its_own(on_hosts, tmp_path, options, check, words):
    run = tmp_path / "run"
    run.mkdir()
    told = on_hosts(f"if rank == 1: own_mounts(); sh('mount -t tmpfs -o {options} none {run}')", "--workdir", str(run))
    assert told.status == 1
    assert {check, "shared workdir"} == set(told.failed)
    missing = [word for word in words if word not in told.failed[check]["found"]]
    assert not missing, told.failed
