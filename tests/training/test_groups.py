"""Parameters with learning rates of their own: frozen ones keep their bits, on every strategy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import digits
from jaxnet import comm
from jaxnet.data import Digits
from jaxnet.errors import InputError
from jaxnet.models import CNN, Model, Variables
from jaxnet.optimizer import Optimizer, ShardedParams, make_optimizer, multipliers
from jaxnet.training.prepare import prepare
from support import tiny

PARAMS = {
    "conv_1": {"kernel": jnp.full((3, 3, 2, 4), 0.5), "bias": jnp.full(4, -0.0)},
    "conv_10": {"kernel": jnp.full((3, 3, 4, 4), 0.25)},
    "head": {"kernel": jnp.full((4, 5), 2.0), "bias": jnp.ones(5)},
}
GRADS = jax.tree.map(lambda leaf: 0.1 + 0.01 * jnp.arange(leaf.size, dtype=jnp.float32).reshape(leaf.shape), PARAMS)
NAMES = ["sgd", "adamw", "rmsprop", "lars", "lamb"]


def test_the_first_pattern_that_matches_counts():
    got = multipliers((("head/bias", 3.0), ("head", 2.0), ("conv_1", 0.5), ("*", 0.0)), PARAMS)
    assert got == {
        "conv_1": {"kernel": 0.5, "bias": 0.5},
        "conv_10": {"kernel": 0.0},  # 'conv_1' is a path, not the beginning of a name
        "head": {"kernel": 2.0, "bias": 3.0},
    }
    assert multipliers((("conv_*", 0.5),), PARAMS)["head"] == {"kernel": 1.0, "bias": 1.0}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((("heads", 0.0),), "optimizer.groups: no parameter matches 'heads'; there are: conv_1/bias, conv_1/kernel"),
        ((("*", 0.0),), "every parameter is frozen"),
    ],
)
def test_a_pattern_without_a_parameter_is_refused(groups, words):
    with pytest.raises(InputError) as error:
        multipliers(groups, PARAMS)
    assert words in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_that_without_groups_times_the_multiplier(name):
    config = Optimizer(name, 0.1, weight_decay=0.01)
    groups = (("head", 10.0), ("conv_*", 0.5))
    plain, grouped = make_optimizer(config, 10), make_optimizer(dataclasses.replace(config, groups=groups), 10)
    states = plain.init(PARAMS), grouped.init(PARAMS)
    for _ in range(3):
        wanted, first = plain.update(GRADS, states[0], PARAMS)
        got, second = grouped.update(GRADS, states[1], PARAMS)
        states = first, second
        for path, leaf in jax.tree.leaves_with_path(wanted):
            by = 10.0 if path[0].key == "head" else 0.5
            np.testing.assert_allclose(dict(jax.tree.leaves_with_path(got))[path], by * leaf, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_frozen_keeps_its_bits_and_has_no_state_and_no_share_in_the_norm(name):
    config = Optimizer(name, 0.1, weight_decay=0.1, clip_norm=0.01, groups=(("conv_*", 0.0),))
    optimizer, alone = make_optimizer(config, 10), make_optimizer(dataclasses.replace(config, groups=()), 10)
    head = {"head": PARAMS["head"]}
    state, alone_state = optimizer.init(PARAMS), alone.init(head)
    sizes = lambda tree: sorted(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    assert sizes(state) == sizes(alone_state)
    bad = {**GRADS, "conv_10": {"kernel": jnp.full((3, 3, 4, 4), jnp.inf)}}
    updates, _ = optimizer.update(bad, state, PARAMS)
    wanted, _ = alone.update({"head": GRADS["head"]}, alone_state, head)
    jax.tree.map(np.testing.assert_array_equal, updates["head"], wanted["head"])
    after = optax.apply_updates(PARAMS, updates)
    for layer in ("conv_1", "conv_10"):
        for key, leaf in after[layer].items():
            assert np.asarray(leaf).tobytes() == np.asarray(PARAMS[layer][key]).tobytes(), (layer, key)


def init(key, images):
    draw = lambda of, *shape: 0.1 * jax.random.normal(jax.random.fold_in(key, of), shape)  # noqa: E731
    body = {"kernel": draw(0, 64, 16), "bias": draw(1, 16)}
    return Variables(
        {"conv_0": body, "dense_0": {"kernel": draw(2, 16, 16)}, "dense_1": {"kernel": draw(3, 16, 10)}}, {}
    )


def apply(params, stats, images, *, train, keys):
    hidden = jnp.tanh(images.reshape(len(images), -1) @ params["conv_0"]["kernel"] + params["conv_0"]["bias"][None])
    return jnp.tanh(hidden @ params["dense_0"]["kernel"]) @ params["dense_1"]["kernel"], stats


MODEL = Model(init, apply)


def run(strategy, name="lamb"):
    """Parameters before and after three steps with a frozen first layer and a fast head."""
    params = jax.eval_shape(MODEL.init, jax.random.key(0), np.zeros((1, *tiny.IMAGE), np.float32)).params
    parts = ShardedParams(params, comm.AXES) if strategy == "zero" else None
    groups = (("conv_0*", 0.0), ("dense_*", 4.0))
    config = Optimizer(name, 0.01, weight_decay=0.1, clip_norm=0.5, groups=groups)
    setup = tiny.setup(MODEL, strategy, (2, 2), optimizer=make_optimizer(config, 10, parts))
    before = jax.device_get(setup.layout.whole(setup.state).params)
    return before, tiny.run(setup, steps=3)[1].params


def test_groups_train_alike_in_parts_and_whole():
    (before, whole), (_, parts) = run("flat"), run("zero")
    for path, leaf in jax.tree.leaves_with_path(whole):
        np.testing.assert_allclose(dict(jax.tree.leaves_with_path(parts))[path], leaf, rtol=1e-4, atol=1e-6)
    for after in (whole, parts):
        for layer, leaves in after.items():
            for key, leaf in leaves.items():
                assert (leaf.tobytes() == before[layer][key].tobytes()) == layer.startswith("conv_0"), (layer, key)


def config_with(**changes):
    config = dataclasses.replace(digits.get_config(), model=CNN(10, widths=(4, 8), hidden=16), batch_size=48)
    return dataclasses.replace(config, **changes)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_the_plan_of_parts_leaves_out_what_is_frozen(name):
    mesh = comm.make_mesh(2, jax.devices()[:4])
    groups = (("conv_*", 0.0),)
    config = config_with(strategy="zero", optimizer=Optimizer(name, clip_norm=1.0, groups=groups))
    experiment = prepare(config, mesh, source=Digits().load("train"))
    compiled = experiment.step.lower(experiment.layout.shapes, experiment.batch_shapes).compile()
    check = comm.verify(compiled.as_text(), experiment.sends.collectives, mesh.shape)
    assert check.ok, check.explain()


def test_a_run_refuses_a_pattern_without_a_parameter():
    config = config_with(optimizer=Optimizer(groups=(("hat", 0.0),)))
    with pytest.raises(InputError, match="no parameter matches 'hat'"):
        prepare(config, comm.make_mesh(1, jax.devices()[:1]), source=Digits().load("train"))
