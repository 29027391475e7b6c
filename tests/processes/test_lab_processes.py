"""`jaxnet lab`: hosts with names and addresses of their own, slow links between them, fast ones inside."""

import json
import os

import pytest

from support.programs import ROOT, jaxnet
from support.training_runs import CONFIG, metrics, summary

pytestmark = pytest.mark.processes


def test_every_host_has_a_name_and_an_address_that_all_know(lab):
    text = """
import re, subprocess
names = [socket.gethostname(), *(socket.gethostbyname(f"host{host}") for host in range(3))]
own = re.findall("inet ([0-9.]+)", subprocess.check_output(["ip", "-4", "address"], text=True))
print(*names, *own, os.environ["JAX_COORDINATOR_ADDRESS"])
"""
    with lab(text, "--processes-per-host", "2", hosts=3) as job:
        assert job.finish() == 0, job.err
        addresses = "10.0.0.1 10.0.0.2 10.0.0.3"
        assert sorted(job.out) == [
            f"[{rank}] host{rank // 2} {addresses} 127.0.0.1 10.0.0.{rank // 2 + 1} 10.0.0.1:12321" for rank in range(6)
        ]


def test_hosts_have_their_own_loopback_and_no_way_out(lab):
    text = """
from errno import errorcode
if rank == 1:
    with socket.create_server(("127.0.0.1", 5001)), listen() as server, server.accept()[0] as other:
        other.recv(1)
else:
    with call("host1"):
        for there in ("127.0.0.1", 5001), ("192.0.2.1", 9):
            print(errorcode[socket.socket().connect_ex(there)])
"""
    with lab(text, PYTHONWARNINGS="default") as job:
        assert job.finish() == 0, job.err
        assert job.out == ["[0] ECONNREFUSED", "[0] ENETUNREACH"]


# Each of the ranks `senders` sends `size` bytes to rank 0, which prints the Mbit/s of all together.
FLOW = """
size, senders = int(sys.argv[1]), [int(sender) for sender in sys.argv[2].split(",")]
if rank == 0:
    import threading
    with listen() as server:
        callers = [server.accept()[0] for _ in senders]
    def take(caller):
        with caller, caller.makefile("rb") as stream:
            while stream.read(1 << 16):
                pass
    takers = [threading.Thread(target=take, args=[caller]) for caller in callers]
    started = time.perf_counter()
    for caller in callers:
        caller.sendall(b"!")
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    print(size * len(senders) * 8 / (time.perf_counter() - started) / 1e6)
elif rank in senders:
    with call("host0") as out:
        out.recv(1)
        out.sendall(bytes(size))
"""


def rate_of(lab, *options, hosts, senders, megabytes):
    with lab(FLOW, *options, hosts=hosts, arguments=[f"{megabytes}000000", senders]) as job:
        assert job.finish() == 0, job.err
        return float(job.out[-1].split()[-1])


def test_a_link_has_its_rate(lab):
    assert 60 < rate_of(lab, "--rate", "100mbit", hosts=2, senders="1", megabytes=4) < 105


@pytest.mark.parametrize("rate", ["10mbit", "250mbit", "1gbit", "10gbit"])
def test_what_is_sent_at_once_fits_into_the_burst(lab, rate):
    """Else `tbf` cuts it into packets of 1500 bytes, and 250 Mbit/s take a core."""
    text = """
import json, subprocess
ask = lambda *command: json.loads(subprocess.check_output(command))[0]
print(ask("ip", "-d", "-j", "link", "show", "dev", "eth0")["gso_max_size"])
print(ask("tc", "-j", "qdisc", "show", "dev", "eth0")["options"]["burst"])
"""
    with lab(text, "--rate", rate, hosts=1) as job:
        assert job.finish() == 0, job.err
        at_once, burst = (int(line.split()[-1]) for line in job.out)
        assert 8192 <= at_once <= min(burst, 65536)


def test_two_that_send_to_one_share_its_link(lab):
    assert 60 < rate_of(lab, "--rate", "100mbit", hosts=3, senders="1,2", megabytes=4) < 105


def test_inside_a_host_the_rate_is_no_limit(lab):
    options = ("--rate", "10mbit", "--processes-per-host", "2")
    assert rate_of(lab, *options, hosts=1, senders="1", megabytes=10) > 100


def test_without_a_rate_links_are_fast(lab):
    assert rate_of(lab, hosts=2, senders="1", megabytes=50) > 500


def test_a_link_is_not_probed(lab):
    """BBR, which a machine may prefer, holds some messages up."""
    with lab('print(open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip())', "--rate", "1gbit") as job:
        assert job.finish() == 0, job.err
        assert sorted(job.out) == ["[0] reno", "[1] reno"]


def test_packets_of_a_connection_are_taken_by_one_core(lab):
    """Else one overtakes another, and TCP takes those for lost: it sent 10 to 60 in a thousand again in vain."""
    text = """
import subprocess
show = "mount -t sysfs sysfs /mnt; cat /mnt/class/net/eth0/queues/rx-0/rps_cpus"
print(int(subprocess.check_output(["unshare", "--mount", "sh", "-c", show]).decode().replace(",", ""), 16))
"""
    with lab(text, "--rate", "1gbit", "--cpus-per-host", "1", hosts=1) as job:
        assert job.finish() == 0, job.err
        assert int(job.out[0].split()[-1]) == 1 << min(os.sched_getaffinity(0))


def test_cores_of_their_own(lab):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two hosts with a core of their own need two cores")
    with lab("print(*os.sched_getaffinity(0))", "--cpus-per-host", "1", "--processes-per-host", "2") as job:
        assert job.finish() == 0, job.err
        assert sorted(job.out) == [f"[{rank}] {cores[rank // 2]}" for rank in range(4)]


PSUM = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxnet.cluster.start import leave
from jaxnet.cluster.start import start
from jaxnet.comm import make_mesh, split_by_example
from jaxnet.errors import exit_cleanly

def main():
    cluster = start()
    mesh = make_mesh(2)
    numbers = jax.make_array_from_callback((8,), split_by_example(mesh), lambda index: jnp.arange(8.0)[index])
    axes = mesh.axis_names
    add = jax.shard_map(lambda x: jax.lax.psum(x, axes), mesh=mesh, in_specs=P(axes), out_specs=P())
    print("\\nsum", int(jax.jit(add)(numbers)[0]), dict(mesh.shape), cluster.address)
    return 0

exit_cleanly(main, leave)
"""


def test_two_hosts_of_two_processes_of_two_devices_add_up(lab):
    with lab(PSUM, "--rate", "1gbit", "--processes-per-host", "2", "--devices-per-process", "2") as job:
        assert job.finish() == 0, job.err
        for rank in range(4):
            assert f"[{rank}] sum 28 {{'host': 2, 'device': 4}} 10.0.0.{rank // 2 + 1}" in job.out


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_training(tmp_path):
    arguments = [str(ROOT / "train.py"), "--config", str(CONFIG), "--workdir", str(tmp_path / "run"), "epochs=0.2"]
    with jaxnet("lab", "--hosts", "2", "--rate", "1gbit", "--", *arguments) as job:
        assert job.finish() == 0, job.err
    done = summary(tmp_path / "run")
    assert done["finished"]
    assert done["mesh"] == {"host": 2, "device": 1}
    assert len(metrics(tmp_path / "run")) == done["steps"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("clip", "chosen"), [("null", "priority"), ("1.0", "ddp")])
def test_over_a_slow_link_messages_cross_the_end_of_a_step(tmp_path, clip, chosen):
    """By default, where the link takes longer than computation, and no update waits for the norm of all gradients."""
    size = ("model.hidden=16384", "batch_size=512", "epochs=1", f"optimizer.clip_norm={clip}")
    digits = ("--config", str(ROOT / "configs/digits.py"), "--workdir", str(tmp_path / "run"))
    arguments = [str(ROOT / "train.py"), *digits, *size]
    with jaxnet("lab", "--hosts", "2", "--rate", "500mbit", "--", *arguments) as job:
        assert job.finish() == 0, job.err
    why = json.loads((tmp_path / "run" / "config.json").read_text())["strategy.choice"]["why"]
    assert ("ms of the link" in why) == (chosen == "priority")
    assert summary(tmp_path / "run")["strategy"] == chosen, why
