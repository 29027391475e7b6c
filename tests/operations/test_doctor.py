"""The checks of `jaxnet doctor`, one by one; tests/processes runs all of them in real processes."""

import json
import os
import queue
import shutil
import socket
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest

from jaxnet.cluster.addresses import Address
from jaxnet.cluster.agreement import code_digests
from jaxnet.cluster.environment import Place
from jaxnet.operations.doctor import devices, directory, host
from jaxnet.operations.doctor.clocks import Offset, judge_clocks
from jaxnet.operations.doctor.examine import Diagnosis, diagnosis_json, diagnosis_text
from jaxnet.operations.doctor.finding import (
    FAILED,
    OK,
    WARNING,
    check_same,
    failed,
    merged,
    ok,
    warning,
)
from jaxnet.operations.doctor.waiting import TimedOut, any_left, within
from support.fake_bucket import fake_buckets, objects, without_library

TWO = Place("variables", 1, 2, Address("node0", 1234), Address("::", 1234))


@pytest.fixture
def hosts(monkeypatch):
    """A dict of names and addresses, which is all that this host, `node1`, can look up."""
    known = {}

    def look_up(name, *_, **__):
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (known[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    return known


def by_check(findings):
    return {finding.check: finding for finding in findings}


def test_an_own_name_that_is_loopback(hosts):
    hosts |= {"node1": "127.0.1.1", "node0": "10.0.0.1"}
    own = by_check(host.check_names(TWO, {}, 1))["own name"]
    assert own.status == WARNING
    assert own.found.startswith("node1 is 127.0.1.1, a loopback address: jaxnet listens elsewhere")
    assert own.cure == "in /etc/hosts of node1, give node1 the address at which the other hosts reach it"
    alone = host.check_names(Place("single"), {}, 1)
    assert [finding.status for finding in alone] == [OK]


def test_an_own_name_without_an_address(hosts):
    [own] = host.check_names(Place("single"), {}, 1)
    assert (own.status, own.found) == (WARNING, "node1 has no address (name or service not known)")


def test_a_coordinator_without_an_address(hosts):
    coordinator = by_check(host.check_names(TWO, {}, 0))["coordinator"]
    assert coordinator.status == FAILED
    assert coordinator.found == "node1 cannot resolve node0 (name or service not known)"


def test_a_coordinator_that_leads_back(hosts):
    hosts |= {"node0": "127.0.1.1"}
    coordinator = by_check(host.check_names(TWO, {}, 1))["coordinator"]
    assert coordinator.status == WARNING
    assert coordinator.found == "node0:1234 is 127.0.1.1 on node1, a loopback address: it leads back to node1"


def test_a_coordinator_that_is_elsewhere_than_rank_0(hosts):
    hosts |= {"node0": "192.0.2.7"}
    first = Place("variables", 0, 2, TWO.coordinator, TWO.bind)
    assert by_check(host.check_names(first, {}, 1))["coordinator"].found == (
        "node0:1234 is 192.0.2.7, which is no address of node1, where rank 0 runs"
    )
    bound = host.check_names(first, {"JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.1:1234"}, 1)
    assert by_check(bound)["coordinator"].status == OK


def test_interfaces():
    there = Place("single", interface="lo")
    assert by_check(host.check_names(there, {}, 1))["interface"].found == "lo has 127.0.0.1"
    missing = by_check(host.check_names(Place("single", interface="nope0"), {}, 1))["interface"]
    assert missing.status == FAILED
    assert "has no such network interface; it has" in missing.found


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({}, OK),
        ({"http_proxy": "http://proxy:3128"}, WARNING),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "localhost, node0"}, OK),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "node0", "no_grpc_proxy": "node7"}, WARNING),
        ({"HTTP_PROXY": "http://proxy:3128"}, OK),  # gRPC goes by the small letters alone
    ],
)
def test_proxies(environ, status):
    found = host.check_proxies(environ, "node0")
    assert found.status == status
    assert status == OK or found.found.startswith("http_proxy is set and no_proxy does not name the coordinator node0")


def test_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       64000000 kB\nMemAvailable:     512000 kB\n")
    assert host.check_memory(meminfo).status == WARNING
    meminfo.write_text("MemTotal:       64000000 kB\nMemAvailable:   32000000 kB\n")
    assert host.check_memory(meminfo).found == "30.5 GiB available"
    assert host.check_memory(tmp_path / "none").status == OK


def with_room(monkeypatch, free):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 0, free))


def test_little_shared_memory(monkeypatch):
    with_room(monkeypatch, 1 << 20)
    found = host.check_shared_memory(Path("/dev/shm"))
    assert (found.status, found.found) == (WARNING, "1 MiB free in /dev/shm")


def test_a_workdir_leaves_nothing_behind(tmp_path, monkeypatch):
    with_room(monkeypatch, 5 << 30)
    found = directory.check_workdir(tmp_path / "runs/new")
    assert [finding.status for finding in found] == [OK, OK]
    assert list(tmp_path.iterdir()) == []


def test_a_workdir_without_room(tmp_path, monkeypatch):
    with_room(monkeypatch, 3 << 20)
    space = by_check(directory.check_workdir(tmp_path))["free space"]
    assert (space.status, space.found) == (FAILED, f"3 MiB free in {tmp_path}, wanted 1 GiB or more")


def test_a_workdir_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    [found, _] = directory.check_workdir(tmp_path / "file/run")
    assert (found.status, found.found) == (FAILED, f"{tmp_path}/file cannot be written to: not a directory")


def test_a_file_server_that_is_dead(tmp_path, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(directory, "_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(directory, "_check", lambda _: answer.wait())
    [found] = directory.check_workdir(tmp_path)
    assert found.found == f"{tmp_path} does not answer: nothing came back within 0.01 s"
    assert any_left()
    end(answer)


def end(answer):
    """Let the threads that wait for it end: the next test in this process counts them."""
    answer.set()
    deadline = time.monotonic() + 60
    while any_left():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_limit_passes_on_what_is_raised():
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)
    answer = threading.Event()
    with pytest.raises(TimedOut):
        within(0.01, answer.wait)
    end(answer)


def test_who_has_answered_is_not_left_however_slowly_it_ends(monkeypatch):
    class Slow(queue.SimpleQueue):
        def put(self, answer):
            super().put(answer)
            time.sleep(0.2)

    monkeypatch.setattr(queue, "SimpleQueue", Slow)
    assert within(60, lambda: 1) == 1
    assert not any_left()


def test_every_key_that_differs_is_named_with_its_holders():
    found = check_same("config", [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}, {"a": "1"}], "the same", "cure")
    assert found.status == FAILED
    assert found.found == "a is '1' on ranks 0, 2, '2' on rank 1; b is 'x' on ranks 0-1, '(not given)' on rank 2"
    assert check_same("config", [{"a": "1"}] * 3, "the same", "cure") == ok("config", "the same")


def test_digests_of_code_name_the_part_that_differs(tmp_path):
    (tmp_path / "net/comm").mkdir(parents=True)
    (tmp_path / "net/errors.py").write_text("a")
    (tmp_path / "net/comm/ring.py").write_text("b")
    before = code_digests(tmp_path / "net")
    (tmp_path / "net/comm/ring.py").write_text("c")
    after = code_digests(tmp_path / "net")
    assert before["code of net"] == after["code of net"]
    assert before["code of net/comm"] != after["code of net/comm"]


def test_clocks():
    near = judge_clocks([Offset(0, 0), Offset(0.2, 0.001), Offset(-0.3, 0.002)])
    assert (near.status, near.found) == (OK, "0.5000 s apart at most, give or take 0.0020 s")
    assert judge_clocks([Offset(0, 0), Offset(5, 4.5)]).status == OK  # it may be half a second
    first = judge_clocks([Offset(0, 0), Offset(-90, 0.01), Offset(-90, 0.01)])
    assert first.found == "rank 0's clock is 90.0 s ahead of the others (give or take 0.0000 s)"


def test_sums_that_fail_name_the_ranks():
    found = devices.judge_sums([devices.Sum(0.001, 0.1, 100, ""), devices.Sum(0, 0, 100, "did not end within 30 s")])
    assert (found.status, found.found) == (FAILED, "rank 1: did not end within 30 s")


def test_findings_of_ranks_become_one_line_where_they_are_alike():
    low = warning("memory", "0.1 GiB available", "end other programs")
    [memory, place] = merged({0: [ok("memory", "9 GiB"), ok("place", "x")], 1: [low, ok("place", "x")]})
    assert memory.found == "rank 1: 0.1 GiB available"
    assert place.found == "x"


def test_the_table_and_its_json():
    low = warning("memory", "0.1 GiB available", "end other programs")
    cut = failed("ranks", "rank 1 is missing", "start it")
    diagnosis = Diagnosis([ok("versions", "jax 0.10.2"), low, cut], ranks=2)
    assert diagnosis_text(diagnosis).splitlines() == [
        "status   check     found",
        "ok       versions  jax 0.10.2",
        "warning  memory    0.1 GiB available",
        "failed   ranks     rank 1 is missing",
        "warning: memory: 0.1 GiB available. Cure: end other programs",
        "failed: ranks: rank 1 is missing. Cure: start it",
        "2 ranks: 1 failed, 1 warning",
    ]
    assert not diagnosis.healthy
    assert json.loads(diagnosis_json(diagnosis))["findings"][2] == vars(cut)
    assert Diagnosis([low]).healthy


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes wherever it likes")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    [found, _] = directory.check_workdir(tmp_path)
    assert found.found == f"{tmp_path} cannot be written to: permission denied"


def test_a_workdir_in_object_storage_is_tried(tmp_path, monkeypatch):
    fake_buckets(monkeypatch, tmp_path)
    written, room = directory.check_workdir(Path("s3://bucket/run"))
    assert (written.status, room.status) == (OK, OK)
    assert written.found == "s3://bucket/run: making an object once, replacing, listing, reading and deleting it work"
    assert objects(tmp_path) == {}
    (tmp_path / "fails").write_text("")
    written, _ = directory.check_workdir(Path("s3://bucket/run"))
    assert (written.status, written.found) == (FAILED, "s3://bucket/run cannot be used: 503 Slow Down")
    without_library(monkeypatch, "gs")
    missing, _ = directory.check_workdir(Path("gs://bucket/run"))
    assert missing == failed(
        "workdir",
        "gs://bucket/run needs gcsfs, which is not installed: pip install 'jaxnet[gcs]'",
        "install it on this host",
    )
