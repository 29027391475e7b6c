"""The learning rate of a line is that of the step, wherever the line falls."""

import numpy as np
import optax
import pytest

from jaxnet.training import pacing
from jaxnet.training.pacing import LearningRates

SCHEDULE = optax.join_schedules([optax.linear_schedule(0.0, 1.0, 30), optax.cosine_decay_schedule(1.0, 170)], [30])


@pytest.mark.parametrize("every", [1, 7])
def test_it_is_the_schedule_at_every_step(monkeypatch, every):
    monkeypatch.setattr(pacing, "_AT_ONCE", 5)
    at = LearningRates(SCHEDULE, every)
    steps = [*range(1, 40), 200, 3, 41]  # beyond what is at hand, and back
    expected = [float(SCHEDULE(step - 1)) for step in steps]
    np.testing.assert_allclose([at(step) for step in steps], expected, rtol=1e-6)


def test_steps_beyond_what_a_device_counts_to_change_nothing():
    assert LearningRates(SCHEDULE, 10**9)(10**9) == pytest.approx(0.0)
