"""A model whose parameters are of every form that a tree of arrays may take, under every strategy on every mesh."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxnet
from jaxnet import Config, comm
from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.data import Digits
from jaxnet.inference.loading import load_network
from jaxnet.models import from_linen
from jaxnet.parallel.device_step import loss_gradient
from jaxnet.tasks.task import LossOutput
from jaxnet.training.initial import initial_values
from jaxnet.training.prepare import prepare
from support import tiny

MESHES = [(2, 4), pytest.param((3, 2), marks=pytest.mark.slow)]


class Pair(NamedTuple):
    left: jax.Array
    right: jax.Array | None


class Odd(nn.Module):
    """Leaves of no dim, of size 0 and of odd sizes, in a tuple, a NamedTuple and beside None."""

    @nn.compact
    def __call__(self, images, train=False):
        pair = self.param("pair", lambda key: Pair(jax.random.normal(key, (64, 5)), None))
        hidden = images.reshape(len(images), -1) @ pair.left
        scale, shift = self.param("tuple", lambda _: (jnp.ones(()), jnp.zeros(5)))
        nothing = self.param("nothing", lambda _: jnp.zeros((0, 4)))
        hidden = nn.tanh(hidden * scale + shift[None]) + nothing.sum()
        return hidden @ self.param("head", lambda key: jax.random.normal(key, (5, tiny.CLASSES)))


@pytest.fixture(scope="module")
def model():
    return from_linen(Odd())


@pytest.fixture(scope="module")
def reference(model):
    return trained(model, "xla", (1, 1))


def trained(model, strategy, shape, size=168):  # 168 examples are cut into 6, 7 and 8 alike
    """Two steps of one compiled program, as the trainer runs it: its state goes in again as it came out."""
    setup = tiny.setup(model, strategy, shape)
    placed = [jax.device_put(tiny.batch(index, size), comm.split_by_example(setup.mesh)) for index in range(2)]
    step, state, losses = setup.step.lower(setup.state, placed[0]).compile(), setup.state, []
    for batch in placed:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses, jax.device_get(setup.layout.whole(state))


@pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("strategy", comm.STRATEGIES)
def test_every_strategy_trains_parameters_of_every_form(strategy, shape, model, reference):
    losses, state = trained(model, strategy, shape)
    params, wanted = state.params, reference[1].params
    assert jax.tree.structure(params) == jax.tree.structure(wanted)
    exact = comm.named_strategy(strategy).exact
    np.testing.assert_allclose(losses, reference[0], rtol=2e-5 if exact else 0.2)
    for leaf, like in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
        assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype)
        if exact:
            np.testing.assert_allclose(leaf, like, atol=1e-3)


class Half(nn.Module):
    """A network in bfloat16, parameters too."""

    @nn.compact
    def __call__(self, images, train=False):
        return nn.Dense(10, param_dtype=jnp.bfloat16)(images.reshape(len(images), -1))


@pytest.mark.parametrize("strategy", ["flat", "torus", "s_caffe_hr", "zero", "bf16", "local_sgd"])
def test_the_plan_counts_what_the_backend_sends_of_bfloat16(strategy):
    config = Config(model=Half(), data=Digits(), epochs=1, batch_size=32, strategy=strategy)
    plan = prepare(config, comm.make_mesh(2, jax.devices()[:4]), source=Digits().load("train")).plan.verified()
    assert plan.check.ok, plan.check.explain()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(plan.params)} == {"bfloat16"}
    sent = {collective["dtype"] for collective in plan.as_json()["planned"]}
    assert sent == ({"uint16", "float32"} if strategy == "bf16" else {"float32"})  # XLA:CPU widens


def dtypes(tree):
    return [leaf.dtype for leaf in jax.tree.leaves(tree)]


def test_parameters_of_16_bits_go_with_a_loss_scale():
    setup = tiny.setup(from_linen(Half()), "flat", (2, 2), optimizer=optax.adam(0.01), scaled=True, skip=True)
    kinds = dtypes(setup.state)
    state, _ = setup.step(setup.state, jax.device_put(tiny.batch(0), comm.split_by_example(setup.mesh)))
    assert dtypes(state) == kinds


@pytest.mark.parametrize("strategy", ["flat", "xla", "zero", "local_sgd:every=1"])
def test_the_average_of_parameters_of_16_bits_is_that_of_the_parameters(strategy):
    setup = tiny.setup(from_linen(Half()), strategy, (2, 2), average_decay=0.999)
    before = jax.device_get(setup.layout.whole(setup.state).average)
    state = setup.state._replace(step=jax.device_put(jnp.int32(10**6), setup.state.step.sharding))
    state, _ = setup.step(state, jax.device_put(tiny.batch(0), comm.split_by_example(setup.mesh)))
    evaluated, _ = setup.layout.evaluated(state)
    assert dtypes(evaluated) == [jnp.bfloat16] * 2  # as the network takes them
    whole = jax.device_get(setup.layout.whole(state))
    for new, old, leaf in zip(*map(jax.tree.leaves, (whole.average, before, whole.params)), strict=True):
        wanted = 0.999 * np.float64(old) + 0.001 * np.float64(leaf)
        np.testing.assert_allclose(np.float64(new), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("microbatches", [2, 64, 1024])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_16_bits_are_added_up_in_more(dtype, microbatches):
    def loss(params, stats, batch, keys):
        value = (batch["x"] @ params["w"].astype(jnp.float32)).mean()
        return value, LossOutput(stats, {"loss": value})

    x = np.random.RandomState(0).uniform(0.5, 1.5, (1024, 8)).astype(np.float32)
    args = {"w": jnp.zeros(8, dtype)}, {}, {"x": x}, jnp.zeros(1024)
    grads, _ = jax.jit(lambda *args: loss_gradient(loss, *args, microbatches))(*args)
    assert dtypes(grads) == [jnp.dtype(dtype)]
    np.testing.assert_allclose(np.float32(grads["w"]), x.mean(0), rtol=float(jnp.finfo(dtype).eps))


OWN_HALF = """
from jaxnet import Config
from jaxnet.data import Digits
from training.test_odd_parameters import Half

def get_config():
    return Config(model=Half(), data=Digits(), epochs=0.1, batch_size=32, average_decay=0.9)
"""


def test_averages_of_16_bits_are_loaded(tmp_path):
    (tmp_path / "own.py").write_text(OWN_HALF)
    run = jaxnet.train(jaxnet.load_config(tmp_path / "own.py"), tmp_path / "run", quiet=True)
    params, _ = run.experiment.layout.evaluated(run.state)
    wanted = {f"params/{name}": leaf for name, leaf in named_leaves(params).items()}
    for given in (
        load_network(tmp_path / "run", config=tmp_path / "own.py").weights,
        initial_values(tmp_path / "run", run.experiment.variables),
    ):
        assert given.keys() == wanted.keys()
        for name, leaf in given.items():
            assert leaf.dtype == jnp.bfloat16
            np.testing.assert_array_equal(np.float32(leaf), np.float32(wanted[name]))
