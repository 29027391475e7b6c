"""Recurrent networks: one reads an image row by row, the other a text token by token."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.recurrent import DenseParams
from jax import lax

from jaxnet.models.layers import Dtype, ExampleDropout, require_layers, require_positive, scaled


class LSTM(nn.Module):
    """Layers of long short-term memory (Hochreiter and Schmidhuber, 1997) over the rows, then a dense layer.

    Each row of pixels with all its channels is one step of the sequence. The last state is classified.

    Attributes:
        num_classes: width of the logits.
        hidden: units of each layer.
        layers: how many layers, stacked.
        width: multiplies the units.
        dropout: rate after each layer, the last included.
        dtype: dtype of computation; parameters and logits are float32.
    """

    num_classes: int
    hidden: int = 128
    layers: int = 1
    width: float = 1.0
    dropout: float = 0.0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes, hidden=self.hidden, layers=self.layers)
        require_layers(layers=self.layers)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        batch, height = images.shape[:2]
        x = images.astype(self.dtype).reshape(batch, height, -1)
        x = _layers(self, x, train=train, keys=keys)
        return nn.Dense(self.num_classes, dtype=self.dtype, name="fc")(x[:, -1]).astype(jnp.float32)


class TextLSTM(nn.Module):
    """Embedded tokens, layers of long short-term memory, logits of the next token.

    Attributes:
        vocabulary: how many tokens there are; width of the logits.
        hidden: units of each layer, and size of an embedded token.
        layers: how many layers, stacked.
        width: multiplies the units.
        dropout: rate after each layer, the last included.
        dtype: dtype of computation; parameters and logits are float32.
    """

    vocabulary: int = 256
    hidden: int = 256
    layers: int = 1
    width: float = 1.0
    dropout: float = 0.0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(vocabulary=self.vocabulary, hidden=self.hidden, layers=self.layers)
        require_layers(layers=self.layers)
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, length, vocabulary], of tokens, int [batch, length]."""
        x = nn.Embed(self.vocabulary, scaled(self.hidden, self.width), dtype=self.dtype, name="embed")(tokens)
        x = _layers(self, x, train=train, keys=keys)
        return nn.Dense(self.vocabulary, dtype=self.dtype, name="fc")(x).astype(jnp.float32)


def _layers(net: LSTM | TextLSTM, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
    """The layers of a network, called within it: [batch, steps, features] to [batch, steps, units]."""
    units = scaled(net.hidden, net.width)
    for layer in range(net.layers):
        x = Memory(units, net.dtype, name=f"lstm_{layer}")(x)
        x = ExampleDropout(net.dropout)(x, train=train, keys=keys)
    return x


# ---- One layer ------------------------------------------------------------------------------------------

_GATES = ("i", "f", "g", "o")  # input, forget, cell and output gate


class Memory(nn.Module):
    """What `nn.RNN(nn.OptimizedLSTMCell(units))` computes, with its parameters, in fewer and larger products.

    The inputs of all steps are multiplied at once, before the loop, and so is what the loop has to add up for the
    gradient of the recurrent kernel, behind it.
    """

    units: int
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [batch, steps, features] to [batch, steps, units]."""
        dense = partial(DenseParams, self.units, param_dtype=jnp.float32)
        lecun, orthogonal, zeros = nn.initializers.lecun_normal(), nn.initializers.orthogonal(), nn.initializers.zeros
        of_inputs = partial(dense, use_bias=False, kernel_init=lecun, bias_init=zeros)
        of_state = partial(dense, use_bias=True, kernel_init=orthogonal, bias_init=zeros)
        inner = [of_inputs(name=f"i{gate}")(x)[0] for gate in _GATES]
        outer = [of_state(name=f"h{gate}")(jnp.zeros((1, self.units))) for gate in _GATES]
        kernel, recurrent = jnp.concatenate(inner, -1), jnp.concatenate([kernel for kernel, _ in outer], -1)
        bias = jnp.concatenate([jnp.asarray(bias) for _, bias in outer])
        x, kernel, recurrent, bias = nn.dtypes.promote_dtype(x, kernel, recurrent, bias, dtype=self.dtype)
        hidden: jax.Array = _recurrence(x.swapaxes(0, 1) @ kernel + bias[None, None], recurrent)
        return hidden.swapaxes(0, 1)


@jax.custom_vjp
def _recurrence(given: jax.Array, kernel: jax.Array) -> jax.Array:
    """The hidden states [steps, batch, units] of gates that are given [steps, batch, 4 units] from outside.

    i, f, g, o = given[t] + h[t-1] @ kernel
    c[t] = sigmoid(f) c[t-1] + sigmoid(i) tanh(g)
    h[t] = sigmoid(o) tanh(c[t])
    """
    return _forward(given, kernel)[0]


def _forward(given: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hidden states, cells and gates behind their sigmoid or tanh, each [steps, batch, ...]."""

    def step(
        state: tuple[jax.Array, jax.Array], given: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
        cell, hidden = state
        i, f, g, o = jnp.split(given + hidden @ kernel, 4, -1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        cell = f * cell + i * g
        hidden = o * jnp.tanh(cell)
        return (cell, hidden), (hidden, cell, jnp.concatenate([i, f, g, o], -1))

    # zeros_like: under shard_map the state must vary over the same mesh axes as what is given, or the scan refuses it.
    zeros = jnp.zeros_like(given[0, :, : kernel.shape[0]])
    return lax.scan(step, (zeros, zeros), given)[1]


def _keep(given: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    hidden, cells, gates = _forward(given, kernel)
    return hidden, (hidden, cells, gates, kernel)


def _backward(kept: tuple[jax.Array, ...], change: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of what was given and of the kernel, of that of the hidden states."""
    hidden, cells, gates, kernel = kept
    transposed = kernel.T  # once, and not in each step
    before = lambda states: jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])  # noqa: E731

    def step(
        state: tuple[jax.Array, jax.Array], at: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        of_cell, of_hidden = state
        change, cell, previous, gates = at
        i, f, g, o = jnp.split(gates, 4, -1)
        seen = jnp.tanh(cell)
        of_hidden = of_hidden + change
        of_cell = of_cell + of_hidden * o * (1 - seen * seen)
        parts = [of_cell * g * i * (1 - i), of_cell * previous * f * (1 - f)]
        parts += [of_cell * i * (1 - g * g), of_hidden * seen * o * (1 - o)]
        of_gates = jnp.concatenate(parts, -1)
        return (of_cell * f, of_gates @ transposed), of_gates

    zeros = jnp.zeros_like(change[0])
    _, of_given = lax.scan(step, (zeros, zeros), (change, cells, before(cells), gates), reverse=True)
    return of_given, jnp.einsum("sbu,sbg->ug", before(hidden), of_given)


_recurrence.defvjp(_keep, _backward)
