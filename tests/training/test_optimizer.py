"""Schedules and optimizers against their formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.training.optimizer import Optimizer, learning_rate, make_optimizer

PARAMS = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "norm": {"scale": jnp.ones(2)}}
ZEROS = {"dense": {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}, "norm": {"scale": jnp.zeros(2)}}


@pytest.mark.parametrize(("schedule", "middle", "end"), [("cosine", 0.5, 0), ("linear", 0.5, 0), ("constant", 1, 1)])
def test_warmup_rises_to_the_peak_and_the_schedule_goes_on_to_the_end(schedule, middle, end):
    rate = learning_rate(Optimizer(learning_rate=1.0, schedule=schedule, warmup_steps=10), total_steps=110)
    np.testing.assert_allclose([rate(step) for step in (0, 5, 10, 60, 110)], [0, 0.5, 1, middle, end], atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_weight_decay_spares_biases_and_batch_norm(name):
    optimizer = make_optimizer(Optimizer(name, 0.1, "constant", weight_decay=0.5, momentum=0.0, nesterov=False), 10)
    updates, _ = optimizer.update(ZEROS, optimizer.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["dense"]["kernel"], -0.05, rtol=1e-6)
    assert (updates["dense"]["bias"] == 0).all()
    assert (updates["norm"]["scale"] == 0).all()


def test_sgd_with_nesterov_momentum_follows_its_formula():
    optimizer = make_optimizer(Optimizer("sgd", 0.1, "constant", momentum=0.9, nesterov=True), 10)
    grad, state, velocity = jnp.array([[2.0]]), optimizer.init(jnp.ones((1, 1))), 0.0
    for _ in range(3):
        updates, state = optimizer.update(grad, state, jnp.ones((1, 1)))
        velocity = 0.9 * velocity + 2.0
        np.testing.assert_allclose(updates, -0.1 * (0.9 * velocity + 2.0), rtol=1e-6)


def test_clipping_bounds_the_global_norm():
    optimizer = make_optimizer(Optimizer("sgd", 1.0, "constant", momentum=0.0, nesterov=False, clip_norm=1.0), 10)
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(grads, optimizer.init(grads), grads)
    np.testing.assert_allclose([updates["a"][0], updates["b"][0]], [-0.6, -0.8], rtol=1e-6)
