"""Recurrent networks: one reads an image row by row, the other a text token by token."""

import flax.linen as nn
import jax
import jax.numpy as jnp

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
        # zeros_like(x): under shard_map the state must vary over the same mesh axes as x, or the scan refuses it.
        state = jnp.zeros_like(x, shape=(x.shape[0], units))
        rows = nn.RNN(nn.OptimizedLSTMCell(units, dtype=net.dtype, name=f"lstm_{layer}"))
        x = jnp.asarray(rows(x, initial_carry=(state, state)))
        x = ExampleDropout(net.dropout)(x, train=train, keys=keys)
    return x
