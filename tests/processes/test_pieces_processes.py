"""Mode 'pieces' across processes: the losses and the reducers' states of mode 'shard_map', and errors that surface."""

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm.pieces.launch import Summed, lower_launch
from support import tiny
from support.ranks import Ranks
from support.training_runs import TWO, losses

pytestmark = pytest.mark.processes

BUCKET = 2048


def trained(mode):
    """Losses of four steps, norms of the errors that this process keeps, and what the programs lack of the plan."""
    setup = tiny.setup(tiny.cnn(), "int8", (2, 1), bucket_bytes=BUCKET, mode=mode)
    reducer = comm.scheduled(comm.named_strategy("int8", BUCKET))
    step = setup.step.lower(setup.state, tiny.batch(0)).compile()
    planned = reducer.plan(setup.state.params, setup.mesh.shape).collectives
    check = comm.verify(step.as_text(), planned, setup.mesh.shape)
    state, curve = setup.state, []
    for index in range(4):
        state, metrics = step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
        curve.append(float(metrics["loss"]))
    kept = [float(np.linalg.norm(leaf.addressable_data(0))) for leaf in jax.tree.leaves(state.comm)]
    return curve, kept, len(check.missing), len(check.extra)


def trained_both_ways(rank):
    return [trained(mode) for mode in ("shard_map", "pieces")]


def test_error_feedback_is_that_of_one_program_and_the_plan_is_kept():
    with Ranks(trained_both_ways, 2, devices=1) as ranks:
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
    summed = [Summed(comm.all_reduce(*comm.AXES), spec)] * 3
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


def test_the_loss_curve_of_a_run_is_that_of_one_program(run):
    way = ("strategy=ddp", "bucket_bytes=65536", "batch_norm=local")
    np.testing.assert_allclose(losses(run(TWO, *way, "mode=pieces")), losses(run(TWO, *way)), rtol=1e-5)
