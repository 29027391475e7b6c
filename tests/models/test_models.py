"""Models are pure, of known size, and behave as their papers say."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxnet.errors import InputError
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


@functools.cache
def variables(model):
    """The first variables of a model, drawn once, as one program: each operation alone would be compiled too."""
    return jax.jit(model.init)(jax.random.key(0), IMAGES)


@functools.cache
def compiled(model, train):
    """`model.apply` as one program."""
    return jax.jit(functools.partial(model.apply, train=train))


@every_model
def test_init_works_on_shapes_alone(model):
    images = jax.ShapeDtypeStruct(IMAGES.shape, "float32")
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    made = variables(model)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), made) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(made))


@every_model
def test_apply_is_pure_and_keeps_the_type_of_stats(model):
    params, stats = variables(model)
    logits, new_stats = compiled(model, True)(params, stats, IMAGES, keys=KEYS)
    again, _ = compiled.__wrapped__(model, True)(params, stats, IMAGES, keys=KEYS)  # it is traced anew
    assert logits.shape == (6, 10)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(logits, again)
    assert jax.tree.structure(new_stats) == jax.tree.structure(stats)

    def evaluate(params, stats):
        outputs, kept = model.apply(params, stats, IMAGES, train=False, keys=None)
        assert kept is stats
        return outputs

    assert jax.eval_shape(evaluate, params, new_stats).shape == (6, 10)


@every_model
def test_examples_are_independent_in_evaluation(model):
    evaluate = compiled(model, False)
    whole, _ = evaluate(*variables(model), IMAGES, keys=None)
    part, _ = evaluate(*variables(model), IMAGES[2:4], keys=None)
    np.testing.assert_allclose(part, whole[2:4], atol=1e-5)


DROPS = from_linen(CNN(10, dropout=0.5))


def test_dropout_belongs_to_the_example():
    params, stats = variables(DROPS)
    apply = compiled(DROPS, True)
    whole, _ = apply(params, stats, IMAGES, keys=KEYS)
    part, _ = apply(params, stats, IMAGES[3:], keys=KEYS[3:])
    np.testing.assert_allclose(part, whole[3:], atol=1e-5)
    other, _ = apply(params, stats, IMAGES, keys=KEYS[::-1])
    assert np.abs(other - whole).max() > 1e-3


def test_dropout_without_keys_is_refused():
    with pytest.raises(ValueError, match="one random key per example"):
        compiled(DROPS, True)(*variables(DROPS), IMAGES, keys=None)


# ---- Ordinary modules, which know nothing of jaxnet --------------------------------------------------------


class Drops(nn.Module):
    """Drops and adds noise by Flax's own streams; `told` says by which argument."""

    @nn.compact
    def forward(self, x, training):
        x = nn.Dense(32, name="hidden")(x.reshape(x.shape[0], -1))
        x = nn.Dropout(0.5, deterministic=not training)(nn.Dropout(0.5, deterministic=not training)(x))
        noise = jax.random.normal(self.make_rng("noise"), x.shape) if training else 0.0
        return nn.Dense(10, name="head")(x + noise)


class Train(Drops):
    def __call__(self, x, train):
        return self.forward(x, train)


class Training(Drops):
    def __call__(self, x, training=False):
        return self.forward(x, training)


class Deterministic(Drops):
    def __call__(self, x, *, deterministic):
        return self.forward(x, not deterministic)


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.head = nnx.Linear(144, 32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)
        self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.second(self.first(self.hidden(x.reshape(x.shape[0], -1)))))


ORDINARY = {
    "train": from_linen(Train()),
    "training": from_linen(Training()),
    "deterministic": from_linen(Deterministic()),
    "nnx": from_nnx(lambda rngs: Dropping(rngs)),
}


@pytest.mark.parametrize("model", ORDINARY.values(), ids=ORDINARY)
def test_what_an_ordinary_module_draws_belongs_to_the_example(model):
    params, stats = variables(model)
    apply, evaluate = compiled(model, True), compiled(model, False)
    assert not jax.tree.leaves(stats)
    whole, _ = apply(params, stats, IMAGES, keys=KEYS)
    part, _ = apply(params, stats, IMAGES[3:], keys=KEYS[3:])
    np.testing.assert_allclose(part, whole[3:], atol=1e-5)
    other, _ = apply(params, stats, IMAGES, keys=KEYS[::-1])
    assert np.abs(other - whole).max() > 1e-3
    alike, _ = apply(params, stats, IMAGES[:1].repeat(6, 0), keys=KEYS)
    assert len(np.unique(np.round(alike, 5), axis=0)) == 6  # every example draws for itself
    twice = [evaluate(params, stats, IMAGES, keys=keys)[0] for keys in (None, KEYS)]
    np.testing.assert_array_equal(*twice)


def test_two_layers_of_one_module_drop_different_units():
    """Else two layers in a row would drop half of all units and not three quarters."""
    ones = jnp.ones((64, 100))
    keys = jax.random.split(jax.random.key(3), 64)

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            for _ in range(2):
                x = nn.Dropout(0.5, deterministic=not train)(x)
            return x

    class TwiceNNX(nnx.Module):
        def __init__(self, rngs):
            self.drops = nnx.List([nnx.Dropout(0.5, rngs=rngs) for _ in range(2)])

        def __call__(self, x):
            return self.drops[1](self.drops[0](x))

    for model in (from_linen(Twice()), from_nnx(lambda rngs: TwiceNNX(rngs))):
        dropped, _ = compiled(model, True)({}, {}, ones, keys=keys)
        assert abs((dropped == 0).mean() - 0.75) < 0.02
        assert abs((dropped == 0).all(0).sum()) == 0  # no unit is dropped in all examples


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@pytest.mark.parametrize("at_first", [False, True])
def test_what_an_nnx_module_sows_is_no_state(at_first):
    """As what a Linen module sows into 'intermediates'."""

    class Sowing(nnx.Module):
        def __init__(self, rngs):
            self.dense, self.norm = nnx.Linear(3, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)
            if at_first:
                self(jnp.ones((1, 3)))

        def __call__(self, rows):
            hidden = self.dense(rows)
            self.sow(nnx.Intermediate, "hidden", hidden)
            return self.norm(hidden)

    model = from_nnx(lambda rngs: Sowing(rngs))
    params, stats = model.init(jax.random.key(0), jnp.ones((4, 3)))
    assert sorted(stats) == ["norm"]
    for train in (True, False):
        outputs, after = model.apply(params, stats, jnp.ones((4, 3)), train=train, keys=None)
        assert outputs.shape == (4, 2)
        assert jax.tree.structure(after) == jax.tree.structure(stats)


def test_inputs_may_be_several():
    class Pair(nn.Module):
        @nn.compact
        def __call__(self, left, right):
            return nn.Dense(3)(left) - nn.Dense(3)(right)

    model, (left, right) = from_linen(Pair()), (jnp.ones((2, 4)), jnp.zeros((2, 5)))
    params, stats = model.init(jax.random.key(0), (left, right))
    by_place, _ = model.apply(params, stats, (left, right), train=True, keys=None)
    by_name, _ = model.apply(params, stats, {"right": right, "left": left}, train=True, keys=None)
    np.testing.assert_array_equal(by_place, by_name)
    with pytest.raises(InputError, match=r"the model Pair has __call__\(left, right\), and is called with \(array\)"):
        model.apply(params, stats, left, train=True, keys=None)


def test_a_draw_that_belongs_to_no_example_is_refused():
    """Flax's attention drops the same places in all examples unless it is told otherwise."""
    x = jnp.ones((4, 6, 8))
    keys = jax.random.split(jax.random.key(0), 4)

    class Attends(nn.Module):
        broadcast: bool

        @nn.compact
        def __call__(self, x, deterministic):
            attention = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5, broadcast_dropout=self.broadcast)
            return attention(x, deterministic=deterministic)

    shared, own = (from_linen(Attends(broadcast)) for broadcast in (True, False))
    params, stats = jax.jit(own.init)(jax.random.key(0), x)
    with pytest.raises(InputError, match=r"of the shape \[1, 1, 6, 6\].*the 4 examples.*set broadcast_dropout=False"):
        compiled(shared, True)(params, stats, x, keys=keys)
    whole, _ = compiled(own, True)(params, stats, x, keys=keys)
    part, _ = compiled(own, True)(params, stats, x[1:3], keys=keys[1:3])
    np.testing.assert_allclose(part, whole[1:3], atol=1e-6)
