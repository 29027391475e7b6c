"""Variables of a model that are neither parameters nor floating-point numbers, in every form of a step."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.config.run import Config
from jaxnet.data import Digits
from jaxnet.errors import InputError
from jaxnet.models import from_linen
from jaxnet.parallel.replicas import Replicas
from jaxnet.training.prepare import prepare
from support import tiny


class Counting(nn.Module):
    """Counts its steps, the same on all devices, and bright examples, which are others on each."""

    flag: bool = False

    @nn.compact
    def __call__(self, images, train=False):
        steps = self.variable("seen", "steps", lambda: jnp.zeros((), jnp.int32))
        bright = self.variable("seen", "bright", lambda: jnp.zeros((), jnp.int32))
        if self.flag:
            self.variable("seen", "any", lambda: jnp.zeros((), bool))
        flat = images.reshape(len(images), -1)
        if train and not self.is_initializing():
            steps.value += 1
            bright.value += (flat.mean(1) > 0).sum()
        return nn.Dense(tiny.CLASSES)(flat)


FORMS = [
    ("flat", (2, 2), {}),
    ("xla", (2, 2), {"mode": "jit"}),
    ("zero", (2, 2), {}),
    ("local_sgd", (2, 2), {}),
    ("flat", (1, 4), {"mode": "pmap"}),
    ("ddp", (1, 1), {"mode": "pieces"}),
    ("priority", (1, 1), {"mode": "pieces", "skip": True}),
]


@pytest.mark.parametrize(("strategy", "shape", "options"), FORMS, ids=lambda value: str(value))
def test_whole_numbers_stay_whole(strategy, shape, options):
    setup = tiny.setup(from_linen(Counting()), strategy, shape, **options)
    losses, state = tiny.run(setup, steps=3)
    assert np.isfinite(losses).all()
    seen = state.stats["seen"]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(seen)} == {"int32"}
    assert np.all(np.asarray(seen["steps"]) == 3)


class Spectrum(nn.Module):
    """A running average of complex numbers."""

    @nn.compact
    def __call__(self, images, train=False):
        flat = images.reshape(len(images), -1)
        mean = self.variable("seen", "spectrum", lambda: jnp.zeros(5, jnp.complex64))
        if train and not self.is_initializing():
            mean.value = 0.5 * mean.value + 0.5 * jnp.fft.fft(flat[:, :5]).mean(0)
        return nn.Dense(tiny.CLASSES)(flat)


@pytest.mark.parametrize("strategy", ["flat", "xla", "zero", "local_sgd:every=3"])
def test_complex_numbers_are_averaged_and_compared(strategy):
    setup = tiny.setup(from_linen(Spectrum()), strategy, (2, 2), skip=True)
    state = setup.state
    for index in range(2):  # under local_sgd a round has not ended, and copies differ
        state, _ = setup.step(state, jax.device_put(tiny.batch(index), comm.split_by_example(setup.mesh)))
    whole = setup.layout.whole(state).stats["seen"]["spectrum"]
    copies = np.asarray(state.stats["seen"]["spectrum"]).reshape(-1, 5)
    assert whole.dtype == jnp.complex64
    np.testing.assert_allclose(whole, copies.mean(0), rtol=1e-5)
    assert ("local" in strategy) == (len(np.unique(copies[:, 1])) > 1)
    assert (Replicas(setup.layout).difference(state) is None) == ("local" not in strategy)


def test_what_cannot_be_averaged_is_refused():
    config = Config(model=Counting(flag=True), data=Digits(), epochs=1, batch_size=32)
    with pytest.raises(InputError, match="the model Counting: its variable seen/any is bool: wanted a number"):
        prepare(config, comm.make_mesh(2, jax.devices()[:4]))


class Frozen(nn.Module):
    """A BatchNorm whose statistics no step changes, and one whose statistics change."""

    both: bool

    @nn.compact
    def __call__(self, images, train=False):
        hidden = nn.BatchNorm(use_running_average=True)(images.reshape(len(images), -1))
        hidden = nn.Dense(8)(hidden)
        if self.both:
            hidden = nn.BatchNorm(use_running_average=not train)(hidden)
        return nn.Dense(tiny.CLASSES)(hidden)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("strategy", ["hierarchical", "zero"])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_running_averages_that_no_example_changes_are_not_planned(both, strategy, microbatches):
    config = Config(model=Frozen(both), data=Digits(), epochs=1, batch_size=32, strategy=strategy)
    config = replace(config, microbatches=microbatches)
    plan = prepare(config, comm.make_mesh(2, jax.devices()[:4]), source=Digits().load("train")).plan.verified()
    assert plan.check.ok, plan.check.explain()
    assert not plan.check.extra
