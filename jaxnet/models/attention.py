"""Blocks of attention and two dense layers, as transformers of images and of text have them (pre-norm)."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.models.layers import Dtype, ExampleDropout

start = nn.initializers.truncated_normal(0.02)
Dense = partial(nn.Dense, kernel_init=start)
LayerNorm = partial(nn.LayerNorm, epsilon=1e-6)


class Block(nn.Module):
    """Attention, then two dense layers; each reads a normalized input and adds its output to it (pre-norm)."""

    heads: int
    dropout: float
    dtype: Dtype
    causal: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """Map [batch, tokens, dim] to the same shape."""
        random: dict[str, Any] = {"train": train, "keys": keys}
        y = LayerNorm(dtype=self.dtype, name="norm1")(x)
        x = x + Attention(self.heads, self.dropout, self.dtype, self.causal, name="attn")(y, **random)
        y = LayerNorm(dtype=self.dtype, name="norm2")(x)
        return x + Mlp(self.dropout, self.dtype, name="mlp")(y, **random)


class Attention(nn.Module):
    """Softmax attention of every token to every token, or (causal) to itself and those before it, in several heads."""

    heads: int
    dropout: float
    dtype: Dtype
    causal: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """Map [batch, tokens, dim] to the same shape."""
        dim = x.shape[-1]
        qkv = Dense(3 * dim, dtype=self.dtype, name="qkv")(x).reshape(*x.shape[:2], 3, self.heads, dim // self.heads)
        query, key, value = (qkv[:, :, index] for index in range(3))
        # Scale before the product, which could overflow in float16.
        scores = jnp.einsum("bqhd,bkhd->bhqk", query * (dim // self.heads) ** -0.5, key)
        scores = scores.astype(jnp.float32)
        if self.causal:
            before = jnp.tri(x.shape[1], dtype=bool)  # row: the token that reads; column: the one that is read
            scores = jnp.where(before, scores, -jnp.inf)
        weights = nn.softmax(scores).astype(x.dtype)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        y = Dense(dim, dtype=self.dtype, name="proj")(y)
        return ExampleDropout(self.dropout)(y, train=train, keys=keys)


class Mlp(nn.Module):
    """Two dense layers, with GELU between them; the hidden one has four times the units."""

    dropout: float
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """Map [..., dim] to the same shape."""
        y = gelu(Dense(4 * x.shape[-1], dtype=self.dtype, name="fc1")(x))
        y = ExampleDropout(self.dropout)(y, train=train, keys=keys)
        y = Dense(x.shape[-1], dtype=self.dtype, name="fc2")(y)
        return ExampleDropout(self.dropout)(y, train=train, keys=keys)


def gelu(x: jax.Array) -> jax.Array:
    """Return the exact GELU to 1e-6, by Abramowitz and Stegun 7.1.26: JAX 0.12 cannot trace erf in shard_map.

    On CPUs backward computes it once more: what lies between would take several passes over memory to write and to
    read. Other compilers do so by themselves, and a TPU's, told to, took a step of 1.07 times the length.
    """
    result: jax.Array = lax.platform_dependent(x, cpu=jax.checkpoint(_gelu), default=_gelu)
    return result


def _gelu(x: jax.Array) -> jax.Array:
    z = jnp.abs(x.astype(jnp.float32)) * 0.5**0.5
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * jnp.exp(-z * z)
    return x * jnp.where(x > 0, 1 - tail, tail).astype(x.dtype)
