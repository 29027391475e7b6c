"""Networks of every kind train through the step: auxiliary heads, recurrence and attention, as examples of a batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnet.models import LSTM, Heads, Model, Variables, ViT, from_linen
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


NETWORKS = {
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
    one, losses = (tiny.run(tiny.setup(from_linen(module), shape=shape), steps=3)[0] for shape in ((1, 1), (2, 2)))
    np.testing.assert_allclose(losses, one, rtol=1e-4)
    assert np.isfinite(losses).all()


def test_an_auxiliary_head_learns():
    setup = tiny.setup(from_linen(TwoHeads()), shape=(1, 2), microbatches=2)
    before = jax.device_get(setup.layout.whole(setup.state)).params["auxiliary"]["kernel"]
    after = tiny.run(setup, steps=1)[1].params["auxiliary"]["kernel"]
    assert np.abs(after - before).max() > 0
