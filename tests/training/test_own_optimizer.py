"""An Optax transformation as the optimizer: the same on every mesh, and refused where it would be another rule."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from jaxnet import comm
from jaxnet.config.run import Config, Ensemble, Log
from jaxnet.data import Synthetic
from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.optimizer import Optimizer
from jaxnet.parallel.elementwise import require_elementwise, require_same_rule
from jaxnet.training.prepare import prepare
from jaxnet.training.trainer import train

DATA = Synthetic((8, 8, 1), num_classes=2, num_train=64, num_test=16)
CONFIG = Config(
    model=CNN(2, widths=(4,), hidden=8),
    data=DATA,
    epochs=1,
    batch_size=16,
    eval_batch_size=16,
    log=Log(every_steps=1, tensorboard=False),
)


def curve(config, shape=(2, 4), steps=4):
    experiment = prepare(config, comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]]))
    state, batches, losses = experiment.init(), experiment.batches(), []
    for _ in range(steps):
        state, metrics = experiment.step(state, next(batches))
        losses.append(float(metrics["loss"]))
    batches.close()
    return losses


def chain(total_steps):
    """What a user writes: a schedule over the run, a clip by value, decay of some parameters."""
    schedule = optax.cosine_decay_schedule(0.01, total_steps)
    decayed = {"conv_0": {"kernel": True, "bias": False}, "dense_0": False, "dense_1": {"kernel": True, "bias": False}}
    return optax.chain(optax.clip(1.0), optax.adamw(schedule, weight_decay=0.1, mask=decayed))


@pytest.fixture(scope="module")
def alone():
    return curve(replace(CONFIG, optimizer=chain), (1, 1))


@pytest.mark.parametrize("strategy", ["hierarchical", "xla", "zero", "s_caffe_obr"])
def test_it_is_the_same_on_every_mesh(strategy, alone):
    assert curve(replace(CONFIG, optimizer=chain, strategy=strategy)) == pytest.approx(alone, rel=1e-5)


def test_it_is_the_same_as_the_plain_numbers():
    schedule = optax.cosine_decay_schedule(0.05, 4)
    ours = curve(replace(CONFIG, optimizer=Optimizer("sgd", learning_rate=0.05)))
    assert curve(replace(CONFIG, optimizer=optax.sgd(schedule, 0.9))) == ours


def test_a_run_says_nothing_of_a_rate_that_it_does_not_know(tmp_path, capsys):
    run = train(replace(CONFIG, optimizer=chain), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all("learning_rate" not in line for line in lines)
    assert "an Optax transformation of its own, chain, seed 0" in capsys.readouterr().out
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["optimizer"].startswith("<function chain")
    again = train(replace(CONFIG, optimizer=chain), tmp_path, quiet=True)
    assert again.summary == run.summary


# ---- Shards -------------------------------------------------------------------------------------------------

PARAMS = {
    "kernel": jax.ShapeDtypeStruct((6, 4), "float32"),
    "bias": jax.ShapeDtypeStruct((4,), "float32"),
    "scale": jax.ShapeDtypeStruct((), "float32"),
}
FLAT_HALVES = {
    "kernel": jax.ShapeDtypeStruct((12,), "float32"),
    "bias": jax.ShapeDtypeStruct((2,), "float32"),
    "scale": jax.ShapeDtypeStruct((1,), "float32"),
}
ELEMENTWISE = {
    "adam": optax.adam(1e-3),
    "adamw of all": optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
    "lion": optax.lion(1e-3),
    "rmsprop": optax.rmsprop(1e-3),
    "clip by value": optax.chain(optax.clip(1.0), optax.sgd(0.1, 0.9, nesterov=True)),
    "every second step": optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "schedule free": contrib.schedule_free_adamw(1e-3),
    "mask by name": optax.masked(optax.sgd(0.1), {"kernel": True, "bias": False, "scale": False}),
}
MIXING = {
    "clip by norm": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "lamb": optax.lamb(1e-3),
    "lars": optax.lars(1e-3),
    "adafactor": optax.adafactor(1e-3),
    "muon": contrib.muon(1e-3),
    "adaptive clip": optax.adaptive_grad_clip(0.1),
    "centralized": optax.centralize(),
    "noise": optax.add_noise(0.1, 0.5, 0),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_goes_element_by_element_may_be_sharded(name):
    require_elementwise(ELEMENTWISE[name], PARAMS, label="zero")
    require_same_rule(ELEMENTWISE[name], PARAMS, FLAT_HALVES, label="zero")


def halves(tree, which):
    """The first or second half of each flat parameter."""
    return jax.tree.map(lambda leaf: np.split(np.asarray(leaf).ravel(), 2)[which] if np.ndim(leaf) else leaf, tree)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_and_indeed_its_update_of_halves_is_half_of_its_update(name):
    """The law that the program is read for, tried with numbers."""
    optimizer, draw = ELEMENTWISE[name], np.random.RandomState(0)
    params, grads = (jax.tree.map(lambda of: draw.standard_normal(of.shape).astype("f4"), PARAMS) for _ in range(2))
    whole, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
    for which in range(2):
        own = halves(params, which)
        part, _ = jax.jit(optimizer.update)(halves(grads, which), optimizer.init(own), own)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), part, halves(whole, which))


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_elements_is_refused_in_shards(name):
    with pytest.raises(InputError, match=r"it mixes the elements of a parameter \(.*strategy=zero gives it shards"):
        require_elementwise(MIXING[name], PARAMS, label="zero")


def scaled_by(factor):
    """SGD with a rate of its own for each shape."""
    scale = optax.stateless(lambda grads, _: jax.tree.map(lambda leaf: factor(leaf) * leaf, grads))
    return optax.chain(scale, optax.sgd(0.1))


LOOKS_AT_SHAPES = {
    "mask by dims": optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)),
    "rate by inputs": scaled_by(lambda leaf: 8 / leaf.shape[0] if leaf.ndim else 1.0),
    "rate by size": scaled_by(lambda leaf: 100 / leaf.size),
    "power by size": optax.stateless(lambda grads, _: jax.tree.map(lambda leaf: leaf ** (1 + leaf.size % 5), grads)),
}
ROWS_OF_KERNEL = {**PARAMS, "kernel": jax.ShapeDtypeStruct((3, 4), "float32")}
COLUMNS_OF_KERNEL = {**PARAMS, "kernel": jax.ShapeDtypeStruct((6, 2), "float32")}


@pytest.mark.parametrize("name", LOOKS_AT_SHAPES)
def test_what_looks_at_shapes_is_refused_where_shards_have_others(name):
    with pytest.raises(InputError, match=r"depends on its shape, and strategy=zero gives it shards of other shapes"):
        require_same_rule(LOOKS_AT_SHAPES[name], PARAMS, FLAT_HALVES, label="zero")


def test_a_kernel_that_is_cut_keeps_its_dims_and_one_of_its_sizes():
    for shards in (ROWS_OF_KERNEL, COLUMNS_OF_KERNEL):
        require_same_rule(LOOKS_AT_SHAPES["mask by dims"], PARAMS, shards, label="hierarchical")
    require_same_rule(LOOKS_AT_SHAPES["rate by inputs"], PARAMS, COLUMNS_OF_KERNEL, label="hierarchical")
    with pytest.raises(InputError, match="depends on its shape"):
        require_same_rule(LOOKS_AT_SHAPES["rate by inputs"], PARAMS, ROWS_OF_KERNEL, label="hierarchical")


def test_a_run_that_would_train_by_another_rule_does_not_begin():
    clipping = replace(CONFIG, optimizer=MIXING["clip by norm"])
    with pytest.raises(InputError, match="take a strategy that keeps the parameters whole, such as hierarchical"):
        prepare(replace(clipping, strategy="zero"), comm.make_mesh(2, jax.devices()[:8]))
    cut = replace(clipping, strategy="hierarchical", shard_dense=("dense_0",))
    with pytest.raises(InputError, match=r"it mixes the elements of a parameter \(reduce_sum"):
        prepare(cut, comm.make_mesh(2, jax.devices()[:8]))
    by_inputs = replace(CONFIG, optimizer=LOOKS_AT_SHAPES["rate by inputs"])
    for sharding in ({"strategy": "zero"}, {"strategy": "hierarchical", "shard_dense": ("dense_0",)}):
        with pytest.raises(InputError, match="depends on its shape"):
            prepare(replace(by_inputs, **sharding), comm.make_mesh(2, jax.devices()[:8]))
    assert curve(clipping, steps=1) == pytest.approx(curve(clipping, (1, 1), steps=1), rel=1e-5)


def test_a_random_key_in_the_state_is_refused():
    noisy = optax.noisy_sgd(0.1, key=jax.random.key(0))
    with pytest.raises(InputError, match=r"optimizer: its state holds key<fry> in \S+: wanted arrays of numbers"):
        prepare(replace(CONFIG, optimizer=noisy), comm.make_mesh(2, jax.devices()[:8]))


def forgetful():
    """Momentum over one step; a part of its state is made of zeros anew, as Adafactor's is for small parameters."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"before": zeros, "unused": jax.tree.map(jnp.zeros_like, params)}

    def update(grads, state, params=None):
        updates = jax.tree.map(lambda grad, before: -0.1 * (grad + 0.5 * before), grads, state["before"])
        return updates, {"before": grads, "unused": jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params)}

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    ("optimizer", "strategy"),
    [
        (optax.adafactor(0.01), "local_sgd:every=2"),
        (optax.adafactor(0.01), "post_local_sgd:every=2:synchronous_steps=2"),
        (forgetful(), "local_sgd:every=2:with_optimizer=true"),
        (forgetful(), "bmuf:every=2"),
        (forgetful(), "zero"),
    ],
)
def test_a_state_that_is_made_anew(optimizer, strategy):
    config = replace(CONFIG, optimizer=optimizer, strategy=strategy)
    assert np.isfinite(losses := curve(config, (2, 2))).all()
    if strategy == "zero":
        assert losses == pytest.approx(curve(replace(config, strategy="flat"), (2, 2)), rel=1e-5)


# ---- What is no optimizer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": "adam"}, r"optimizer is of type str: wanted an Optimizer\(...\), an Optax transformation"),
        ({"optimizer": Optimizer}, "optimizer is the class Optimizer: wanted"),
        ({"optimizer": lambda steps: 0.1}, r"optimizer: it gave float for 4 steps; wanted an Optax transformation"),
        ({"optimizer": chain, "ensemble": Ensemble(2)}, "ensemble.members=2 does not go with an Optax transformation"),
    ],
)
def test_what_is_no_optimizer(changes, said):
    with pytest.raises(InputError, match=said):
        prepare(replace(CONFIG, **changes), comm.make_mesh(1, jax.devices()[:1]))
