"""The recurrent network computes what its definition says."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxnet.models import LSTM, from_linen

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


def test_parameters_by_hand():
    shapes = jax.eval_shape(from_linen(LSTM(10)).init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    gates = 4 * (28 * 128 + 128 * 128 + 128)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes.params)) == gates + 128 * 10 + 10 == 81_674
