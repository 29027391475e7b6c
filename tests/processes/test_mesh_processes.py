"""Rows of a mesh that are no processes, as the lines of a TPU slice whose processes hold blocks of 2 x 2."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxnet import comm
from jaxnet.config.run import Config, Log
from jaxnet.data import Synthetic
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer
from jaxnet.training.prepare import prepare
from support.ranks import Ranks

pytestmark = pytest.mark.processes

CONFIG = Config(
    model=CNN(4, widths=(4,), hidden=8),
    data=Synthetic((8, 8, 1), num_classes=4, num_train=64, num_test=16),
    epochs=1,
    batch_size=16,
    eval_batch_size=16,
    optimizer=Optimizer("sgd", learning_rate=0.1),
    log=Log(tensorboard=False),
)


def trained(rank, strategy, rows):
    """Loss of each step, then of the test examples, on a mesh whose rows are processes or go across them."""
    devices = np.array(jax.devices()).reshape(2, 2)
    mesh = Mesh(devices if rows == "processes" else devices.T, comm.AXES)
    experiment = prepare(dataclasses.replace(CONFIG, strategy=strategy), mesh)
    state, losses = experiment.init(), []
    with contextlib.closing(experiment.batches()) as batches:
        for _, batch in zip(range(4), batches, strict=False):
            state, metrics = experiment.step(state, batch)
            losses.append(float(metrics["loss"]))
    return [*losses, experiment.evaluate(state)["loss"]]


@pytest.mark.slow
def test_a_run_is_the_same_whether_rows_are_processes_or_go_across_them():
    """With shards, which lie along rows and columns."""
    found = {}
    for rows in ("processes", "lines"):
        with Ranks(trained, 2, "zero", rows) as ranks:
            first, second = ranks.results()
        assert first == second
        found[rows] = first
    assert len(found["lines"]) == 5
    np.testing.assert_allclose(found["lines"], found["processes"], rtol=1e-4)
