"""Models are pure, of known size, and behave as their papers say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxnet.models import CNN, LSTM, ResNet, ViT, from_linen, from_nnx


class Net(nnx.Module):
    """A small NNX network as a user would write it."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.norm(self.conv(images))).mean((1, 2))
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.head(x)


MODELS = {
    "cnn": from_linen(CNN(10, norm=True, dropout=0.5)),
    "cnn_smooth": from_linen(CNN(10, smooth=True)),
    "resnet": from_linen(ResNet(10, (1, 1, 1), "basic", "small", channels=8)),
    "lstm": from_linen(LSTM(10, hidden=8, layers=2, dropout=0.5)),
    "vit": from_linen(ViT(10, patch=4, dim=16, depth=1, heads=2, dropout=0.5)),
    "nnx": from_nnx(lambda rngs: Net(rngs)),
}
IMAGES = np.random.RandomState(0).standard_normal((6, 12, 12, 1)).astype(np.float32)
KEYS = jax.random.split(jax.random.key(1), 6)

every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@every_model
def test_init_works_on_shapes_alone(model):
    images = jax.ShapeDtypeStruct(IMAGES.shape, "float32")
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    made = model.init(jax.random.key(0), jnp.asarray(IMAGES))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), made) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(made))


@every_model
def test_apply_is_pure_and_keeps_the_type_of_stats(model):
    params, stats = model.init(jax.random.key(0), jnp.asarray(IMAGES))
    logits, new_stats = model.apply(params, stats, IMAGES, train=True, keys=KEYS)
    again, _ = model.apply(params, stats, IMAGES, train=True, keys=KEYS)
    assert logits.shape == (6, 10)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(logits, again)
    assert jax.tree.structure(new_stats) == jax.tree.structure(stats)
    _, kept = model.apply(params, new_stats, IMAGES, train=False, keys=None)
    assert kept is new_stats


@every_model
def test_examples_are_independent_in_evaluation(model):
    params, stats = model.init(jax.random.key(0), jnp.asarray(IMAGES))
    whole, _ = model.apply(params, stats, IMAGES, train=False, keys=None)
    part, _ = model.apply(params, stats, IMAGES[2:4], train=False, keys=None)
    np.testing.assert_allclose(part, whole[2:4], atol=1e-5)


def test_dropout_belongs_to_the_example():
    model = from_linen(CNN(10, dropout=0.5))
    params, stats = model.init(jax.random.key(0), jnp.asarray(IMAGES))
    whole, _ = model.apply(params, stats, IMAGES, train=True, keys=KEYS)
    part, _ = model.apply(params, stats, IMAGES[3:], train=True, keys=KEYS[3:])
    np.testing.assert_allclose(part, whole[3:], atol=1e-5)
    other, _ = model.apply(params, stats, IMAGES, train=True, keys=KEYS[::-1])
    assert np.abs(other - whole).max() > 1e-3


def test_dropout_without_keys_is_refused():
    model = from_linen(CNN(10, dropout=0.5))
    params, stats = model.init(jax.random.key(0), jnp.asarray(IMAGES))
    with pytest.raises(ValueError, match="one random key per example"):
        model.apply(params, stats, IMAGES, train=True, keys=None)


def test_nnx_module_with_dropout_is_refused():
    class Dropping(nnx.Module):
        def __init__(self, rngs):
            self.drop = nnx.Dropout(0.5, rngs=rngs)

    with pytest.raises(ValueError, match="random state"):
        from_nnx(lambda rngs: Dropping(rngs))
