"""A decoder-only transformer: each token from those before it."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.attention import Block, Dense, LayerNorm, start
from jaxnet.models.layers import Dtype, ExampleDropout, require_layers, require_positive, scaled


class Transformer(nn.Module):
    """Embedded tokens and positions, causal blocks, logits of the next token; of the form of GPT-2 (Radford, 2019).

    Attributes:
        vocabulary: how many tokens there are; width of the logits.
        positions: the longest sequence that it takes.
        dim: size of the vector that represents a token; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads in each block.
        width: multiplies the size of each head, and so `dim`.
        dropout: rate after the positions, and after each dense layer of a block except query, key and value.
        dtype: dtype of computation; parameters, the softmax of attention and logits are float32.
    """

    vocabulary: int = 256
    positions: int = 256
    dim: int = 128
    depth: int = 4
    heads: int = 4
    width: float = 1.0
    dropout: float = 0.0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(
            vocabulary=self.vocabulary, positions=self.positions, dim=self.dim, depth=self.depth, heads=self.heads
        )
        require_layers(depth=self.depth)
        if self.dim % self.heads:
            raise InputError(f"dim must be a multiple of heads, got {self.dim} and {self.heads}")
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, length, vocabulary], of tokens, int [batch, length].

        Raises:
            InputError: the sequences are longer than `positions`.
        """
        length = tokens.shape[1]
        if length > self.positions:
            raise InputError(f"sequences of {length} tokens: set model.positions to at least {length}")
        dim = self.heads * scaled(self.dim // self.heads, self.width)
        # The table stays float32; only what is looked up is cast.
        x = nn.Embed(self.vocabulary, dim, embedding_init=start, dtype=self.dtype, name="embed")(tokens)
        places = self.param("pos_embed", start, (1, self.positions, dim))
        x = x + places[:, :length].astype(x.dtype)
        x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        for index in range(self.depth):
            block = Block(self.heads, self.dropout, self.dtype, causal=True, name=f"blocks_{index}")
            x = block(x, train=train, keys=keys)
        x = LayerNorm(dtype=self.dtype, name="norm")(x)
        return Dense(self.vocabulary, dtype=self.dtype, name="head")(x).astype(jnp.float32)
