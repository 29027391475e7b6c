"""The recurrent network computes what its definition says."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.models import LSTM, from_linen
from jaxnet.models.lstm import Memory
from support.checkpointing import assert_same_bits

IMAGES = np.random.RandomState(0).standard_normal((3, 5, 4, 2)).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain(params, rows):
    """Outputs of every step, one example and one step at a time."""
    outputs = np.zeros((*rows.shape[:2], params["hi"]["bias"].shape[0]))
    for example, sequence in enumerate(rows):
        state = memory = np.zeros(outputs.shape[-1])
        for step, row in enumerate(sequence):
            gate = {
                name: row @ params[f"i{name}"]["kernel"]
                + state @ params[f"h{name}"]["kernel"]
                + params[f"h{name}"]["bias"]
                for name in "ifgo"
            }
            memory = sigmoid(gate["f"]) * memory + sigmoid(gate["i"]) * np.tanh(gate["g"])
            state = outputs[example, step] = sigmoid(gate["o"]) * np.tanh(memory)
    return outputs


def test_rows_are_read_from_the_top_and_the_last_state_is_classified():
    model = from_linen(LSTM(3, hidden=8, layers=2))
    shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES).params
    draw = np.random.RandomState(1)
    params = jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape).astype(np.float32), shapes)
    ours, _ = jax.jit(lambda *given: model.apply(*given, train=False, keys=None))(params, {}, IMAGES)
    states = IMAGES.reshape(3, 5, 8)
    for layer in ("lstm_0", "lstm_1"):
        states = plain(params[layer], states)
    wanted = states[:, -1] @ params["fc"]["kernel"] + params["fc"]["bias"]
    np.testing.assert_allclose(ours, wanted, atol=1e-4)


class OfFlax(nn.Module):
    """A layer as Flax has it, step by step."""

    @nn.compact
    def __call__(self, x):
        return nn.RNN(nn.OptimizedLSTMCell(8, name="lstm_0"))(x)


class Ours(nn.Module):
    @nn.compact
    def __call__(self, x):
        return Memory(8, "float32", name="lstm_0")(x)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_values_gradients_and_first_parameters_are_those_of_flax(steps):
    x = np.random.RandomState(0).standard_normal((3, steps, 5)).astype(np.float32)
    ours, flax = Ours(), OfFlax()
    params = flax.init(jax.random.key(4), x)
    assert_same_bits(ours.init(jax.random.key(4), x), params)

    def loss(net):
        return lambda params, x: (jnp.sin(net.apply(params, x)) ** 2).sum()

    for net in (ours, flax):
        assert net.apply(params, x).shape == (3, steps, 8)
    got, wanted = (jax.jit(jax.value_and_grad(loss(net), argnums=(0, 1)))(params, x) for net in (ours, flax))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_parameters_by_hand():
    shapes = jax.eval_shape(from_linen(LSTM(10)).init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    gates = 4 * (28 * 128 + 128 * 128 + 128)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes.params)) == gates + 128 * 10 + 10 == 81_674
