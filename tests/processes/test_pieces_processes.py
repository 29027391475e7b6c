"""Mode 'pieces' across processes: losses and states of mode 'shard_map', runs that continue, errors that surface."""

import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm import Message, lower_launch
from support import tiny
from support.checkpointing import assert_same_bits
from support.paced_digits import SAVE_EVERY, STEPS
from support.ranks import Ranks
from support.training_runs import TWO, arrays, finish, losses, metrics, pid_of, saved_steps, start, summary

pytestmark = pytest.mark.processes

BUCKET = 2048


def trained(strategy, mode):
    """Losses of four steps, norms of what this process remembers, and what the programs lack of the plan."""
    setup = tiny.setup(tiny.cnn(), strategy, (2, 1), bucket_bytes=BUCKET, mode=mode)
    reducer = comm.scheduled(comm.named_strategy(strategy, BUCKET))
    step = setup.step.lower(setup.state, tiny.batch(0)).compile()
    planned = reducer.plan(setup.state.params, setup.mesh.shape).collectives
    check = comm.verify(step.as_text(), planned, setup.mesh.shape)
    state, curve = setup.state, []
    for index in range(4):
        state, metrics = step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        curve.append(float(metrics["loss"]))
    kept = [float(np.linalg.norm(leaf.addressable_data(0))) for leaf in jax.tree.leaves(state.comm)]
    return curve, kept, len(check.missing), len(check.extra)


def trained_both_ways(rank, strategy):
    return [trained(strategy, mode) for mode in ("shard_map", "pieces")]


# tests/training/test_pieces_step.py does it in one process.
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["int8", "powersgd"])
def test_error_feedback_is_that_of_one_program_and_the_plan_is_kept(strategy):
    with Ranks(trained_both_ways, 2, strategy, devices=1) as ranks:
        results = ranks.results()
    for whole, pieces in results:
        np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-5)
        assert min(pieces[1]) > 1e-4
        np.testing.assert_allclose(pieces[1], whole[1], rtol=1e-2)  # a number that is rounded the other way
        assert (pieces[2], pieces[3]) == (0, 1)  # all that was planned, and the metrics
    assert results[0][1][0] == results[1][1][0]


def after_an_error(rank):
    """The second of three messages cannot be launched; then the same call as it should be."""
    mesh = comm.make_mesh()
    spec = jax.ShapeDtypeStruct((3,), "float32")
    summed = [Message(comm.all_reduce(*comm.AXES), spec)] * 3
    launch = lower_launch(lambda x: [x + 1, x + 2, x + 3], [spec], summed, mesh).compile()
    x = jax.device_put(np.full(3, rank, np.float32), mesh.local_devices[0])
    try:
        launch([x], [(), "not a state", ()])
    except TypeError as error:
        said = type(error).__name__
    sums, _ = launch([x], [(), (), ()])
    return said, [np.asarray(total).tolist() for total in sums]


def test_an_error_in_the_helper_thread_is_raised_and_the_next_call_works():
    """Process 0 has 0, process 1 has 1: sums of both plus twice 1, 2 and 3. Both processes end by themselves."""
    with Ranks(after_an_error, 2, devices=1) as ranks:
        assert ranks.results() == [["TypeError", [[3] * 3, [5] * 3, [7] * 3]]] * 2


WAY = ("bucket_bytes=65536", "batch_norm=local")


@pytest.mark.slow
def test_the_loss_curve_of_a_run_is_that_of_one_program(run):
    way = ("strategy=ddp", *WAY)
    np.testing.assert_allclose(losses(run(TWO, *way, "mode=pieces")), losses(run(TWO, *way)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["int8", "priority"])
def test_stopped_and_continued_it_ends_as_unbroken(run, tmp_path, strategy):
    """To the last bit: parameters, what the optimizer keeps, and the reducers' states, which int8 has."""
    way = (f"strategy={strategy}", *WAY, *(["mode=pieces"] if strategy == "int8" else []))
    with start(tmp_path, TWO, *way, PACE_SECONDS="0.1") as program:
        program.wait_for(f"[0] step {SAVE_EVERY + 2:>6}/{STEPS}")
        os.kill(pid_of(program, 1), signal.SIGTERM)
        assert program.finish() == 0, program.err
    stopped = summary(tmp_path)["steps"]
    assert SAVE_EVERY < stopped < STEPS
    assert saved_steps(tmp_path)[-1] == stopped
    program = finish(tmp_path, TWO, *way)
    assert f"[0] continuing {tmp_path} from step {stopped}" in program.out
    unbroken = run(TWO, *way)
    assert any("comm" in name for name in arrays(unbroken)) == (strategy == "int8")
    assert json.loads((unbroken / "config.json").read_text())["mode"] == ("pieces" if strategy == "int8" else "auto")
    assert_same_bits(arrays(tmp_path), arrays(unbroken))
    assert losses(tmp_path).tolist() == losses(unbroken).tolist()
    assert metrics(tmp_path, "test") == metrics(unbroken, "test")


@pytest.mark.slow
def test_it_continues_what_one_program_of_another_strategy_began(run, tmp_path):
    began = run(TWO, "strategy=ddp", *WAY)
    workdir = shutil.copytree(began, tmp_path / "copy")
    for step in saved_steps(workdir)[1:]:
        shutil.rmtree(workdir / f"checkpoints/{step:06d}")
    way = ("strategy=hierarchical", *WAY, "mode=pieces", "--allow-config-change")
    program = finish(workdir, TWO, *way)
    assert f"[0] continuing {workdir} from step {SAVE_EVERY}" in program.out
    np.testing.assert_allclose(losses(workdir), losses(began), rtol=1e-5)
    assert (summary(workdir)["strategy"], summary(workdir)["finished"]) == ("hierarchical", True)
