"""Schedules and optimizers against their formulas."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnet.models.vit import vit_tiny
from jaxnet.optimizer import Optimizer, decayed, learning_rate, make_optimizer

PARAMS = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "norm": {"scale": jnp.ones(2)}}
ZEROS = {"dense": {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}, "norm": {"scale": jnp.zeros(2)}}


@pytest.mark.parametrize(("schedule", "middle", "end"), [("cosine", 0.5, 0), ("linear", 0.5, 0), ("constant", 1, 1)])
def test_warmup_rises_to_the_peak_and_the_schedule_goes_on_to_the_end(schedule, middle, end):
    rate = learning_rate(Optimizer(learning_rate=1.0, schedule=schedule, warmup_steps=10), total_steps=110)
    np.testing.assert_allclose([rate(step) for step in (0, 5, 10, 60, 110)], [0, 0.5, 1, middle, end], atol=1e-6)


def rates(total_steps, **fields):
    rate = learning_rate(Optimizer(learning_rate=2.0, **fields), total_steps)
    return np.array([float(rate(step)) for step in range(total_steps)])


STEPS = np.arange(100)
PROGRESS = np.clip((STEPS - 20) / 80, 0, 1)
FALLS = {
    "cosine": ({}, (1 + np.cos(np.pi * PROGRESS)) / 2),
    "linear": ({}, 1 - PROGRESS),
    "polynomial": ({}, (1 - PROGRESS) ** 2),
    "step": ({"milestones": (0.3, 0.6, 0.8), "factor": 0.2}, 0.2 ** sum((at <= STEPS) * 1.0 for at in (30, 60, 80))),
    "constant": ({}, np.ones(100)),
}


@pytest.mark.parametrize("schedule", FALLS)
def test_schedules_follow_their_formulas_after_a_gradual_warmup(schedule):
    fields, falls = FALLS[schedule]
    wanted = np.where(STEPS < 20, 0.25 + 0.75 * STEPS / 20, falls)
    got = rates(100, schedule=schedule, warmup_steps=20, warmup_from=0.25, **fields)
    np.testing.assert_allclose(got, 2.0 * wanted, rtol=1e-5, atol=1e-6)


def test_the_power_and_the_milestones_are_those_given():
    np.testing.assert_allclose(
        rates(10, schedule="polynomial", power=0.5), 2 * (1 - np.arange(10) / 10) ** 0.5, rtol=1e-5
    )
    many = tuple(part / 10 for part in range(1, 10))
    np.testing.assert_allclose(
        rates(10, schedule="step", milestones=many, factor=0.94), 2 * 0.94 ** np.arange(10), rtol=1e-5
    )


def test_the_rate_of_a_reference_batch_grows_with_the_batch():
    given = Optimizer(learning_rate=0.1, reference_batch=256, warmup_epochs=5, warmup_steps=3)
    run = given.for_run(8192, steps_per_epoch=156.39)
    assert (run.learning_rate, run.warmup_steps, run.warmup_epochs) == (3.2, 3 + 782, 0.0)
    assert run.for_run(8192, steps_per_epoch=156.39) == run
    assert Optimizer().for_run(8192, 10.0) == Optimizer()


def followed(config, reference, params, steps=4):
    """Both optimizers on the same random gradients."""
    ours, draw = make_optimizer(config, 10), np.random.RandomState(0)
    states, trees = [ours.init(params), reference.init(params)], [params, params]
    for _ in range(steps):
        grads = jax.tree.map(lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape), jnp.float32), params)
        for at, optimizer in enumerate((ours, reference)):
            updates, states[at] = optimizer.update(grads, states[at], trees[at])
            trees[at] = optax.apply_updates(trees[at], updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), *trees)


def test_adamw_is_that_of_its_paper_and_with_nesterov_nadamw():
    config = Optimizer("adamw", 0.05, "constant", weight_decay=0.1)
    followed(config, optax.adamw(0.05, weight_decay=0.1, mask=decayed), PARAMS)
    followed(replace(config, nesterov=True), optax.nadamw(0.05, weight_decay=0.1, mask=decayed), PARAMS)


def test_of_a_vision_transformer_kernels_alone_are_decayed():
    """The biases of attention have two dims, the class token and the positions three."""
    params = jax.eval_shape(lambda: vit_tiny(10).init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False))
    found = jax.tree_util.tree_leaves_with_path(decayed(params["params"]))
    names = {jax.tree_util.keystr(path[-1:], simple=True) for path, is_decayed in found if is_decayed}
    assert names == {"kernel"}
    assert sum(leaf.ndim > 1 for leaf in jax.tree.leaves(params["params"])) > sum(is_decayed for _, is_decayed in found)


def test_lamb_is_that_of_optax_and_leaves_biases_to_adam():
    config = Optimizer("lamb", 0.05, "constant", weight_decay=0.1)
    kernels = {"a": jnp.full((3, 4), 0.3), "b": jnp.full((2, 2, 3), -1.0), "zero": jnp.zeros((2, 2))}
    followed(config, optax.lamb(0.05, eps=1e-6, weight_decay=0.1), kernels)
    by_hand = optax.chain(
        optax.scale_by_adam(eps=1e-6),
        optax.add_decayed_weights(0.1, mask=decayed),
        optax.masked(optax.scale_by_trust_ratio(), decayed),
        optax.scale(-0.05),
    )
    followed(config, by_hand, PARAMS)


def test_rmsprop_is_that_of_inception():
    followed(
        Optimizer("rmsprop", 0.045, "constant", momentum=0.9, nesterov=False, weight_decay=0.2),
        optax.chain(
            optax.add_decayed_weights(0.2, mask=decayed),
            optax.rmsprop(0.045, decay=0.9, eps=1.0, initial_scale=1.0, momentum=0.9),
        ),
        PARAMS,
    )


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
