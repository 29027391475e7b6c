"""A config in which everything is somebody's own trains alike on every mesh, and says what it sends."""

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.file import load_config
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train
from support.programs import ROOT
from support.runs import sharing

CONFIG = sharing(load_config(ROOT / "tests/support/stranger.py"))


def losses(shape, steps=10):
    experiment = prepare(CONFIG, comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]]))
    state, batches, curve = experiment.init(), experiment.batches(), []
    for _ in range(steps):
        state, metrics = experiment.step(state, next(batches))
        curve.append([float(metrics[name]) for name in ("loss", "kind", "brightness", "accuracy")])
    batches.close()
    return np.array(curve), [experiment.evaluate(state, split) for split in experiment.evaluated_splits]


@pytest.fixture(scope="module")
def alone():
    return losses((1, 1))


@pytest.mark.parametrize("shape", [(1, 8), (2, 4)], ids=str)
def test_the_losses_are_the_same_on_every_mesh(shape, alone):
    curve, evaluations = losses(shape)
    np.testing.assert_allclose(curve, alone[0], rtol=1e-5)
    for found, wanted in zip(evaluations, alone[1], strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)


def test_it_learns_and_its_plan_is_in_the_program(tmp_path):
    run = train(CONFIG, tmp_path, quiet=True)
    assert run.summary["accuracy"] > 0.9
    assert run.summary["best"]["validation"] > 0.9
    assert "predivided(8, scattered('device', all_reduce('host')))" in run.summary["strategy"]
    experiment = prepare(CONFIG, comm.make_mesh(2, jax.devices()[:8]))
    assert experiment.plan.verified().check.ok
