"""Runs as a user starts them, in a workdir that another holds, that a killed one has left, or whose disk is full."""

import json
import time

import pytest

from jaxnet.report.goodput import goodput, read_ledger
from support import disks
from support.training_runs import ONE, OWN_CACHE, await_path, finish, saved_steps, start, summary

pytestmark = pytest.mark.processes


def programs(workdir):
    """The training steps that were compiled."""
    return set(workdir.glob("compile_cache/*/jit_on_device-*-cache"))


def test_a_second_run_is_refused_and_a_killed_one_is_replaced(tmp_path):
    with start(tmp_path, ONE, OWN_CACHE, PACE_SECONDS="0.5") as first:
        await_path(tmp_path / "lock/000001.json")
        with start(tmp_path, ONE, OWN_CACHE) as second:
            assert second.finish() == 2
            [line] = second.err
        assert line.startswith(f"error: {tmp_path} is in use by process {first.pid} of user ")
        await_path(tmp_path / "checkpoints/000020")
        first.process.kill()
        first.process.wait()
    compiled = programs(tmp_path)
    third = finish(tmp_path, ONE, OWN_CACHE)
    [line] = [line for line in third.err if "taking over" in line]
    assert line.startswith(f"warning: {tmp_path} was left by process {first.pid} of user ")
    assert f"continuing {tmp_path} from step 20" in third.out
    assert len(compiled) == 1
    assert programs(tmp_path) == compiled
    found = goodput(read_ledger(tmp_path / "ledger.jsonl"))
    first_attempt, last = (row.attempt for row in found.rows)
    assert (first_attempt.pid, first_attempt.ended, last.first, last.step, last.ended) == (
        first.pid,
        False,
        20,
        60,
        True,
    )
    assert 0 < found.fraction < 1
    assert any(line.startswith("goodput ") for line in third.out)
    assert summary(tmp_path)["not_saved"] == ""


@pytest.fixture
def small_disk(tmp_path):
    with disks.small_disk(tmp_path / "disk") as place:
        yield place


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_checkpoints_and_not_the_run(small_disk):
    workdir = small_disk / "run"
    with start(workdir, ONE, OWN_CACHE, PACE_SECONDS="0.1") as program:
        await_path(workdir / "checkpoints/000020")
        before = saved_steps(workdir)
        with (small_disk / "filling").open("wb", buffering=0) as filling:
            while program.process.poll() is None:  # a save that failed gives back what it had taken
                try:
                    filling.write(bytes(4096))
                except OSError:
                    time.sleep(0.01)
        assert program.finish() == 2
    assert "Traceback" not in "\n".join(program.err)
    errors = [line for line in program.err if line.startswith("error: ")]
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    after = saved_steps(workdir)
    assert (len(after), max(after)) >= (len(before), max(before))
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    (small_disk / "filling").unlink()
    again = finish(workdir, ONE, OWN_CACHE)
    assert saved_steps(workdir)[-1] == summary(workdir)["steps"] == 60
    assert any(line.startswith(f"continuing {workdir} from step") for line in again.out)
