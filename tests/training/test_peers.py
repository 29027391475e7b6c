"""What the processes of a run tell each other beside the gradients."""

import threading
from types import SimpleNamespace

import pytest

from jaxnet.cluster.start import Cluster
from jaxnet.report.goodput import RankTimes
from jaxnet.training import peers
from jaxnet.training import peers as own_time
from jaxnet.training.ledger import Ledger
from jaxnet.training.peers import Peers, StepClock


class Clocks:
    now = processor = thread = 0.0

    def perf_counter(self):
        return self.now

    def process_time(self):
        return self.processor

    def thread_time(self):
        return self.thread

    def pass_step(self, wall, device=0.0, host=0.0):
        self.now += wall
        self.processor += device + host
        self.thread += host


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(own_time, "time", clocks)
    return clocks


def test_the_own_time_is_what_is_left_without_the_waiting(clocks):
    own, waited = StepClock(computes=True), 0.0
    own.stepped(waited)
    for waits in (0.5, 0.75, 0.5, 0.75, 0.5):
        assert own.times(2) is None
        clocks.pass_step(1.0, device=0.25, host=0.125)
        waited += waits
        own.stepped(waited)
    assert own.times(2) == RankTimes(2, step=1.0, host=0.5, device=0.25)


def test_what_comes_between_two_steps_is_none_of_them(clocks):
    own = StepClock(computes=False)
    for _ in range(10):
        clocks.pass_step(0.1)
        own.stepped(0.0)
        clocks.pass_step(30.0)
        own.pause()
        clocks.pass_step(0.1)
        own.stepped(0.0)
    assert own.times(0).step == pytest.approx(0.1)
    assert own.times(0).device is None


def test_processor_time_of_other_threads_is_the_devices():
    own = StepClock(computes=True)
    for _ in range(7):
        thread = threading.Thread(target=lambda: sum(range(200_000)))
        thread.start()
        thread.join()
        own.stepped(0.0)
    assert own.times(0).device > 0


class Told(StepClock):
    """The times that a test gives."""

    def __init__(self, host):
        self._host = host

    def times(self, rank):
        return RankTimes(rank, 0.1, self._host)


def peers_of(cluster, host, ledger, say, source=None):
    made = Peers(cluster, source, ledger, say)
    made.own = Told(host)
    return made


class Store:
    """The key-value store of all processes."""

    def __init__(self):
        self.values = {}

    def republish(self, key, value):
        self.values[key] = value

    def read_all(self, folder):
        return {key.rpartition("/")[2]: value for key, value in self.values.items() if key.startswith(folder + "/")}


def test_each_rank_tells_now_and_then_and_rank_0_says_who_is_slow_once(monkeypatch):
    store, clock, said, ledger = Store(), [100.0], [], Ledger()
    monkeypatch.setattr(peers, "coordination", store)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(peers, "_created", iter([7] * 4))  # as in four processes
    ranks = [peers_of(Cluster(rank, 4), 0.01 + (rank == 3), ledger, said.append) for rank in range(4)]
    for _ in range(3):  # within five seconds: once
        for rank in reversed(ranks):
            rank.share()
    assert len(store.values) == 4
    assert said == [
        "rank 3 is a straggler: its host needs 1010.0 ms a step, where the median of 4 ranks is 10.0 ms and the limit "
        "20.0 ms"
    ]
    store.values.clear()
    clock[0] += 6
    for rank in ranks:
        rank.share()
    assert len(store.values) == 4
    assert len(said) == 1


def test_a_service_that_has_gone_ends_no_run(monkeypatch):
    import jax

    def gone(*_):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE")

    monkeypatch.setattr(peers.coordination, "republish", gone)
    peers_of(Cluster(1, 4), 0.1, Ledger(), print).share()


def test_a_process_alone_tells_itself(monkeypatch, tmp_path):
    ledger = Ledger()
    ledger.open(tmp_path / "ledger.jsonl")
    ledger.began(0)
    alone = peers_of(Cluster(), 0.1, ledger, print, SimpleNamespace(damaged={4: "empty", 9: "cut short"}))
    alone.share()
    assert alone.gather() == ([], 2)
    assert ledger.close().rows[0].attempt.ranks == [RankTimes(0, 0.1, 0.1)]
