"""A run goes on when a checkpoint cannot be written, and never has fewer good ones than before."""

import shutil
import threading

import numpy as np
import pytest

from jaxnet.checkpoints import FaultTolerantCheckpoints, manifest
from jaxnet.checkpoints.lock import Lost
from jaxnet.errors import InputError
from support import disks
from support.checkpointing import Run, assert_same_bits, on

MIB = 1 << 20


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    yield run
    run.close()


@pytest.fixture
def small_disk(tmp_path):
    with disks.small_disk(tmp_path / "disk") as place:
        yield place


def large(run, seed):
    return on(run.mesh, {"w": np.random.default_rng(seed).normal(size=600_000).astype(np.float32)})  # 2.4 MB


# Tensorstore still reports the other parts of a failed write to the event loop that Orbax has closed.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk(small_disk):
    run, said = Run(small_disk / "run"), []
    checkpoints = FaultTolerantCheckpoints(run.open(keep=2), said.append)
    for step in (10, 20):
        checkpoints.save(step, large(run, step), extra={})
    checkpoints.wait()
    assert (said, checkpoints.unsaved) == ([], "")
    filling = small_disk / "filling"
    filling.write_bytes(bytes(shutil.disk_usage(small_disk).free - MIB))
    for step in (30, 40):
        checkpoints.save(step, large(run, step), extra={})
        checkpoints.wait()
        [line] = said
        assert f"checkpoint step {step} could not be written to {small_disk}/run: No space left on device" in line
        assert checkpoints.unsaved
        assert run.open().steps() == [10, 20]
        assert [path.name for path in run.path.iterdir() if path.suffix] == []  # the space is freed
        said.clear()
    filling.unlink()
    checkpoints.save(50, large(run, 50), extra={})
    checkpoints.close()
    assert (said, checkpoints.unsaved) == ([], "")
    assert run.open().steps() == [20, 50]
    run.close()


def test_a_directory_that_cannot_be_written_and_one_that_vanishes(run):
    said = []
    checkpoints = FaultTolerantCheckpoints(run.open(), said.append)
    checkpoints.save(10, run.state(10), extra={})
    checkpoints.wait()
    away = run.path.rename(run.path.with_name("away"))
    for step in (20, 30):
        checkpoints.save(step, run.state(step), extra={})
        checkpoints.wait()
    assert [line.partition(" could not be written")[0] for line in said] == ["checkpoint step 20", "checkpoint step 30"]
    assert all("No such file or directory" in line for line in said)
    away.rename(run.path)
    checkpoints.save(40, run.state(40), extra={})
    checkpoints.close()
    assert checkpoints.unsaved == ""
    assert run.open().steps() == [10, 40]


def test_a_failure_is_told_although_nothing_else_is_saved(run, monkeypatch):
    said = []
    checkpoints = FaultTolerantCheckpoints(run.open(), said.append)

    def read_only(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(manifest, "write", read_only)
    checkpoints.save(10, run.state(10), extra={})
    checkpoints.close()
    assert "Read-only file system" in checkpoints.unsaved
    assert len(said) == 1


def test_slow_storage_does_not_hold_up_training(run, monkeypatch):
    """Only the next save waits for it. The first save holds its own state, although its arrays were reused since."""
    slow, write = threading.Event(), manifest.write

    def slowly(*arguments):
        assert slow.wait(60)
        write(*arguments)

    monkeypatch.setattr(manifest, "write", slowly)
    checkpoints = FaultTolerantCheckpoints(run.open(), print)
    state = run.state(10)
    checkpoints.save(10, state, extra={})  # returns, although nothing can be written
    state["w"].delete()
    assert run.open().steps() == []
    slow.set()
    checkpoints.wait()
    assert_same_bits(run.open().restore(10, run.like).state, run.value(10))


def test_a_run_that_was_replaced_stops_before_it_publishes_or_deletes(run):
    lost = []

    def fence():
        if lost:
            raise Lost("taken over by process 7")

    checkpoints = FaultTolerantCheckpoints(run.open(fence=fence), print)
    checkpoints.save(10, run.state(10), extra={})
    checkpoints.wait()
    (run.path / "000020-1.saving").mkdir()  # of the run that has taken over
    lost.append(True)
    with pytest.raises(Lost, match="taken over by process 7"):
        checkpoints.save(20, run.state(20), extra={})
    assert (run.path / "000020-1.saving").exists()


def test_a_run_that_is_replaced_while_it_saves_publishes_nothing(run, monkeypatch):
    lost, write = [], manifest.write

    def fence():
        if lost:
            raise Lost("taken over")

    def write_and_lose(*arguments):
        write(*arguments)
        lost.append(True)

    monkeypatch.setattr(manifest, "write", write_and_lose)
    checkpoints = FaultTolerantCheckpoints(run.open(fence=fence), print)
    checkpoints.save(10, run.state(10), extra={})
    with pytest.raises(Lost):
        checkpoints.wait()
    assert run.open().steps() == []


def test_what_is_no_fault_of_the_storage_is_raised(run):
    checkpoints = FaultTolerantCheckpoints(run.open(), print)
    checkpoints.save(10, run.state(10), extra={})
    with pytest.raises(InputError, match="step 5 is not newer than step 10"):
        checkpoints.save(5, run.state(5), extra={})
