"""A recurrent network that reads an image row by row."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.models.layers import Dtype, ExampleDropout, require_positive, scaled


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
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        batch, height = images.shape[:2]
        units = scaled(self.hidden, self.width)
        x = images.astype(self.dtype).reshape(batch, height, -1)
        for layer in range(self.layers):
            # zeros_like(x): under shard_map the state must vary over the same mesh axes as x, or the scan refuses it.
            state = jnp.zeros_like(x, shape=(batch, units))
            rows = nn.RNN(nn.OptimizedLSTMCell(units, dtype=self.dtype, name=f"lstm_{layer}"))
            x = jnp.asarray(rows(x, initial_carry=(state, state)))
            x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        return nn.Dense(self.num_classes, dtype=self.dtype, name="fc")(x[:, -1]).astype(jnp.float32)
