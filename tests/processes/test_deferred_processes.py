"""The schedule 'deferred' across processes: one loss curve, and resumes on any topology."""

import json
import shutil

import numpy as np
import pytest

from support.checkpointing import assert_same_bits
from support.training_runs import EIGHT, ONE, TWO, arrays, finish, losses

pytestmark = pytest.mark.processes

ZERO = "strategy=zero"


@pytest.mark.parametrize(
    "way",
    [
        pytest.param((TWO, ZERO), id="2 processes", marks=pytest.mark.slow),
        # tests/training/test_deferred.py trains on the devices of one process.
        pytest.param((EIGHT, ZERO, "hosts=2"), id="8 devices", marks=pytest.mark.slow),
    ],
)
def test_the_loss_curve_of_a_run_is_that_of_hierarchical(run, way):
    np.testing.assert_allclose(losses(run(*way)), losses(run(ONE)), rtol=1e-5)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(run, tmp_path):
    unbroken = run(TWO, ZERO)
    workdir = shutil.copytree(unbroken, tmp_path / "copy")
    for step in ("000060", "000040"):
        shutil.rmtree(workdir / "checkpoints" / step)
    finish(workdir, TWO, ZERO)
    assert_same_bits(arrays(workdir), arrays(unbroken))
    assert json.loads((workdir / "summary.json").read_text())["finished"]


def test_a_run_continues_under_another_strategy_and_topology(run, tmp_path):
    workdir = shutil.copytree(run(TWO, ZERO), tmp_path / "copy")
    for step in ("000060", "000040"):
        shutil.rmtree(workdir / "checkpoints" / step)

    finish(workdir, EIGHT, "--allow-config-change", "strategy=hierarchical")
    np.testing.assert_allclose(losses(workdir), losses(run(ONE)), rtol=1e-5)
