"""Networks of every kind train through the step: auxiliary heads, recurrence and attention, as examples of a batch."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxnet import comm
from jaxnet.config.run import Config
from jaxnet.data import Synthetic
from jaxnet.models import LSTM, Heads, Model, ResNet, Variables, ViT, example_key, from_linen, from_nnx
from jaxnet.tasks.classification import Pixels, classification_loss
from jaxnet.training.prepare import prepare
from support import tiny


class TwoHeads(nn.Module):
    """A dense layer with a classifier over it, and an auxiliary one under it in training."""

    num_classes: int = tiny.CLASSES

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = images.reshape(images.shape[0], -1)
        auxiliary = nn.Dense(self.num_classes, name="auxiliary")(x)
        logits = nn.Dense(self.num_classes, name="main")(nn.relu(nn.Dense(16, name="hidden")(x)))
        return Heads(logits, ((0.3, auxiliary),)) if train else logits


class Ordinary(nn.Module):
    """As in Flax's documentation: `train`, Flax's own Dropout, and noise from a stream of the author's own."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Dense(16)(x.reshape(x.shape[0], -1)))
        x = nn.Dropout(0.3, deterministic=not train)(x)
        if train:
            x = x + 0.1 * jax.random.normal(self.make_rng("noise"), x.shape)
        return nn.Dense(tiny.CLASSES)(x)


class OrdinaryNNX(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.head = nnx.Linear(64, 16, rngs=rngs), nnx.Linear(16, tiny.CLASSES, rngs=rngs)
        self.drops = nnx.List([nnx.Dropout(0.3, rngs=rngs), nnx.Dropout(0.3, rngs=rngs)])

    def __call__(self, x):
        x = self.drops[0](nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))
        return self.head(self.drops[1](x))


class BothNNX(nnx.Module):
    """BatchNorm and Dropout."""

    def __init__(self, rngs):
        self.hidden, self.head = nnx.Linear(64, 32, rngs=rngs), nnx.Linear(32, tiny.CLASSES, rngs=rngs)
        self.norm = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.hidden(x.reshape(x.shape[0], -1)))
        return self.head(self.drop(nnx.gelu(x)))


class BothLinen(nn.Module):
    """The same, with names and random numbers that are those of NNX."""

    @nn.compact
    def __call__(self, x, train, keys=None):
        x = nn.Dense(32, name="hidden")(x.reshape(x.shape[0], -1))
        x = nn.gelu(nn.BatchNorm(not train, momentum=0.9, name="norm")(x))
        if train:  # what nnx.Dropout draws with the first of the module's streams
            key = jax.random.fold_in(jax.random.fold_in(example_key(keys), 1), 0)
            x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0)
        return nn.Dense(tiny.CLASSES, name="head")(x)


NETWORKS = {
    "ordinary": Ordinary(),
    "ordinary NNX": from_nnx(lambda rngs: OrdinaryNNX(rngs)),
    "two heads": TwoHeads(),
    "lstm": LSTM(tiny.CLASSES, hidden=8, dropout=0.2),
    "vit": ViT(tiny.CLASSES, patch=4, dim=16, depth=1, heads=2, dropout=0.2),
}


MODELS = {name: net if isinstance(net, Model) else from_linen(net) for name, net in NETWORKS.items()}


@functools.cache
def alone(model):
    """The first losses on one device."""
    return tiny.run(tiny.setup(model, shape=(1, 1)), steps=3)[0]


@pytest.mark.parametrize("shape", [pytest.param((1, 1), marks=pytest.mark.slow), (2, 4)])
def test_an_nnx_module_has_the_curve_of_its_linen_twin(shape):
    """Over 60 steps, from the same weights; running averages and an evaluation, too."""
    nnx_model, linen = from_nnx(lambda rngs: BothNNX(rngs)), from_linen(BothLinen())
    params, stats = tiny.variables(nnx_model)
    linen = linen._replace(init=lambda key, images: Variables(params, {"batch_stats": {"norm": stats["norm"]}}))
    curve, state = tiny.run(tiny.setup(nnx_model, shape=shape), steps=60)
    wanted, twin = tiny.run(tiny.setup(linen, shape=shape), steps=60)
    np.testing.assert_allclose(curve, wanted, rtol=1e-5)
    images = jnp.asarray(tiny.batch(0)["image"], jnp.float32)
    evaluated = [
        model.apply(found.params, found.stats, images, train=False, keys=None)[0]
        for model, found in ((nnx_model, state), (linen, twin))
    ]
    np.testing.assert_allclose(*evaluated, rtol=1e-4, atol=1e-4)
    assert np.ptp(curve) > 0.1  # it has learned something


def test_the_loss_of_an_auxiliary_head_is_added_times_its_weight():
    draw = np.random.RandomState(0)
    first, second, third = (jnp.asarray(draw.standard_normal((4, 3)), "float32") for _ in range(3))
    heads = Heads(first, ((0.25, second), (2.0, third)))
    model = Model(lambda key, images: Variables({}, {}), lambda *given, **named: (heads, {}))
    loss_fn = classification_loss(model, Pixels(), label_smoothing=0.1)
    batch = {"image": jnp.zeros((4, 2, 2, 1), jnp.uint8), "label": jnp.array([0, 2, 1, 1])}
    loss, result = loss_fn({}, {}, batch, jax.random.split(jax.random.key(0), 4))
    target = optax.smooth_labels(jax.nn.one_hot(batch["label"], 3), 0.1)
    plain = [-(target * jax.nn.log_softmax(logits)).sum(-1).mean() for logits in (first, second, third)]
    np.testing.assert_allclose(loss, plain[0] + 0.25 * plain[1] + 2.0 * plain[2], rtol=1e-6)
    np.testing.assert_allclose(result.metrics["loss"], loss)
    np.testing.assert_allclose(result.metrics["accuracy"], (first.argmax(-1) == batch["label"]).mean())


@pytest.mark.parametrize(
    "model",
    [pytest.param(MODELS[name], marks=[pytest.mark.slow] * (name == "vit"), id=name) for name in MODELS],
)
def test_the_losses_are_the_same_on_any_number_of_devices(model):
    losses = tiny.run(tiny.setup(model, shape=(2, 2)), steps=3)[0]
    np.testing.assert_allclose(losses, alone(model), rtol=1e-4)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("xla", {}),
        ("zero", {"microbatches": 2}),
        ("s_caffe_b", {}),
        ("flat", {"mode": "pmap", "shape": (1, 4)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_ordinary_network_trains_alike_under_every_form(strategy, options):
    model = MODELS["ordinary"]
    losses = tiny.run(tiny.setup(model, strategy, **{"shape": (2, 2), **options}), steps=3)[0]
    np.testing.assert_allclose(losses, alone(model), rtol=1e-5)


def test_an_auxiliary_head_learns():
    setup = tiny.setup(from_linen(TwoHeads()), shape=(1, 2), microbatches=2)
    before = jax.device_get(setup.layout.whole(setup.state)).params["auxiliary"]["kernel"]
    after = tiny.run(setup, steps=1)[1].params["auxiliary"]["kernel"]
    assert np.abs(after - before).max() > 0


@pytest.mark.parametrize("strategy", ["per_leaf", "parameter_server"])
def test_of_two_equal_gradients_one_travels_and_the_plan_says_so(strategy):
    """The two last biases of a block whose input and output differ in size have the same gradient."""
    config = Config(
        model=ResNet(2, (1, 1), "basic", "small", channels=4),
        data=Synthetic((8, 8, 1), num_classes=2, num_train=32, num_test=16),
        epochs=1,
        batch_size=16,
        strategy=strategy,
    )
    check = prepare(config, comm.make_mesh(2)).plan.verified().check
    assert check.ok
    assert len(check.repeated) == 1
    assert "1 of them as another one" in check.explain()
