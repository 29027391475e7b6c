"""Runs as a user starts them, in a workdir that another holds, that a killed one has left, or whose disk is full."""

import json
import resource

import jax
import numpy as np
import pytest

from jaxnet.checkpoints import Checkpoints, NotSaved
from jaxnet.report.goodput import goodput, read_ledger
from support import disks
from support.checkpointing import mesh_of, on
from support.ranks import Ranks
from support.training_runs import ONE, await_path, finish, saved_steps, start, summary

pytestmark = pytest.mark.processes


def programs(workdir):
    """The training steps that were compiled."""
    return set(workdir.glob("compile_cache/*/jit_on_device-*-cache"))


def test_a_second_run_is_refused_and_a_killed_one_is_replaced(tmp_path):
    with start(tmp_path, ONE, PACE_SECONDS="0.5") as first:
        await_path(tmp_path / "lock/000001.json")
        with start(tmp_path, ONE) as second:
            assert second.finish() == 2
            [line] = second.err
        assert line.startswith(f"error: {tmp_path} is in use by process {first.pid} of user ")
        await_path(tmp_path / "checkpoints/000020")
        first.process.kill()
        first.process.wait()
    compiled = programs(tmp_path)
    third = finish(tmp_path, ONE)
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


def test_a_disk_that_fills_up_costs_checkpoints_and_not_the_run(small_disk):
    workdir = small_disk / "run"
    with start(workdir, ONE, PACE_SECONDS="0.1") as program:
        await_path(workdir / "checkpoints/000020")
        before = saved_steps(workdir)
        with (small_disk / "filling").open("wb", buffering=0) as filling:
            while True:  # whatever is written beside
                try:
                    filling.write(bytes(4096))
                except OSError:
                    break
        assert program.finish() == 2
    assert "Traceback" not in "\n".join(program.err)
    errors = [line for line in program.err if line.startswith("error: ")]
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    assert set(before) <= set(saved_steps(workdir))
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    (small_disk / "filling").unlink()
    again = finish(workdir, ONE)
    assert saved_steps(workdir)[-1] == summary(workdir)["steps"] == 60
    assert any(line.startswith(f"continuing {workdir} from step") for line in again.out)


def save_with_one_failing(rank, directory):
    """What each of three saves ended with; during the second, one process cannot write."""
    mesh = mesh_of(jax.process_count(), jax.local_device_count())
    checkpoints, ends = Checkpoints(directory), []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in (10, 20, 30):
        draw = np.random.default_rng(step).normal(size=(8, 100_000)).astype(np.float32)
        if step == 20 and rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            checkpoints.save(step, on(mesh, {"residual": draw}), extra={})
            checkpoints.wait()
            ends.append("")
        except NotSaved as error:
            ends.append(str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    checkpoints.close()
    return [ends, checkpoints.steps()]


def test_a_save_that_fails_on_one_process_fails_on_all_and_the_next_works(tmp_path):
    with Ranks(save_with_one_failing, 2, str(tmp_path)) as ranks:
        first, second = ranks.results()
    assert first == second
    (well, failed, again), steps = first
    assert (well, again, steps) == ("", "", [10, 30])
    assert failed == f"checkpoint step 20 could not be written to {tmp_path}: File too large"
