"""A training step written by hand over MPI: the loss curve of one process, and the end when a rank fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import all_reduce, bucketed, mpi_all_reduce, scattered
from support.mpirun import MpiRun, missing

needs_mpi = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def train(reducer, mesh, examples, count):
    """Losses of ten steps of SGD on this process's `examples` out of `count`."""
    draw = np.random.RandomState(0)
    params = {"hidden": draw.standard_normal((6, 8)), "out": draw.standard_normal((8, 1))}
    params = jax.tree.map(lambda v: jnp.asarray(v, jnp.float32) / 3, params)

    def loss(params, x, y):
        return ((jnp.tanh(x @ params["hidden"]) @ params["out"] - y) ** 2).sum()

    def step(params, x, y):
        varying = jax.lax.pcast(params, comm.AXES, to="varying")
        value, grads = jax.value_and_grad(loss)(varying, x, y)
        # The loss is summed with the gradients: metrics need no second way across hosts.
        sums, _ = reducer.reduce(
            {"grads": grads, "loss": value}, reducer.init({"grads": grads, "loss": value}, mesh.shape)
        )
        params = jax.tree.map(lambda p, g: p - 0.1 * g / count, params, sums["grads"])
        return params, sums["loss"] / count

    specs = (P(), P(comm.AXES), P(comm.AXES))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P()), donate_argnums=0)
    losses = []
    for x, y in examples:
        params, value = mapped(params, x, y)
        losses.append(value)
    return [float(value) for value in losses]


def batches(start=0, stop=None):
    """Ten global batches of 16, and of each the examples of one process."""
    draw = np.random.RandomState(1)
    images = [draw.standard_normal((16, 6)).astype(np.float32) for _ in range(10)]
    return [(x[start:stop], np.sin(x[start:stop, :1])) for x in images]


def train_by_mpi(algorithm):
    from mpi4py import MPI

    rank, share = MPI.COMM_WORLD.rank, 16 // MPI.COMM_WORLD.size
    reducer = bucketed(scattered("device", mpi_all_reduce(algorithm=algorithm)), 100)
    return train(reducer, comm.make_mesh(1), batches(rank * share, (rank + 1) * share), 16)


@needs_mpi
@pytest.mark.processes
@pytest.mark.parametrize(("algorithm", "devices"), [("ring", 1), ("library", 2)])
def test_training_has_the_loss_curve_of_one_process(algorithm, devices):
    alone = comm.make_mesh(1, jax.devices()[:1])
    want = train(bucketed(all_reduce(*comm.AXES), None), alone, batches(), 16)
    assert want[-1] < want[0]
    with MpiRun(train_by_mpi, 2, algorithm, devices=devices) as run:
        for losses in run.results():
            np.testing.assert_allclose(losses, want, rtol=1e-5)


def fail_on_rank_one():
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise ValueError("rank 1 has had enough")
    jax.block_until_ready(train_by_mpi("ring"))


@needs_mpi
@pytest.mark.processes
def test_a_rank_that_fails_ends_the_others():
    with MpiRun(fail_on_rank_one, 2) as run:
        assert run.status() != 0
        assert "ValueError: rank 1 has had enough" in run.err
