"""Networks of every kind train through the step: auxiliary heads, recurrence and attention, as examples of a batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxnet.models import LSTM, Heads, Model, Variables, ViT, from_linen, from_nnx
from jaxnet.tasks.classification import Pixels, classification_loss
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


NETWORKS = {
    "ordinary": Ordinary(),
    "ordinary NNX": from_nnx(lambda rngs: OrdinaryNNX(rngs)),
    "two heads": TwoHeads(),
    "lstm": LSTM(tiny.CLASSES, hidden=8, dropout=0.2),
    "vit": ViT(tiny.CLASSES, patch=4, dim=16, depth=1, heads=2, dropout=0.2),
}


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


@pytest.mark.parametrize("module", NETWORKS.values(), ids=NETWORKS)
def test_the_losses_are_the_same_on_any_number_of_devices(module):
    model = module if isinstance(module, Model) else from_linen(module)
    one, losses = (tiny.run(tiny.setup(model, shape=shape), steps=3)[0] for shape in ((1, 1), (2, 2)))
    np.testing.assert_allclose(losses, one, rtol=1e-4)
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
    model = from_linen(Ordinary())
    one = tiny.run(tiny.setup(model, shape=(1, 1)), steps=3)[0]
    losses = tiny.run(tiny.setup(model, strategy, **{"shape": (2, 2), **options}), steps=3)[0]
    np.testing.assert_allclose(losses, one, rtol=1e-5)


def test_an_auxiliary_head_learns():
    setup = tiny.setup(from_linen(TwoHeads()), shape=(1, 2), microbatches=2)
    before = jax.device_get(setup.layout.whole(setup.state)).params["auxiliary"]["kernel"]
    after = tiny.run(setup, steps=1)[1].params["auxiliary"]["kernel"]
    assert np.abs(after - before).max() > 0
