"""Vision transformers (Dosovitskiy et al., 2021) of the sizes of DeiT (Touvron et al., 2021), named as in timm."""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.attention import Block, Dense, LayerNorm, start
from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import Dtype, ExampleDropout, require_layers, require_positive, scaled


class ViT(nn.Module):
    """Patches, pre-norm blocks of attention and two dense layers, and a dense classifier.

    The positions are learned for one size of image: a network that is trained on 224x224 takes no other.

    Attributes:
        num_classes: width of the logits.
        patch: height and width of a patch; they divide those of the images.
        dim: size of the vector that represents a patch; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads in each block.
        pool: what is classified: 'class': a token that is added to the patches; 'mean': the mean over the patches.
        width: multiplies the size of each head, and so `dim`.
        dropout: rate after the positions, and after each dense layer of a block except query, key and value.
        dtype: dtype of computation; parameters, the softmax of attention and logits are float32.
    """

    num_classes: int
    patch: int = 16
    dim: int = 192
    depth: int = 12
    heads: int = 3
    pool: Literal["class", "mean"] = "class"
    width: float = 1.0
    dropout: float = 0.0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(
            num_classes=self.num_classes, patch=self.patch, dim=self.dim, depth=self.depth, heads=self.heads
        )
        require_layers(depth=self.depth)
        if self.dim % self.heads:
            raise InputError(f"dim must be a multiple of heads, got {self.dim} and {self.heads}")
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels].

        Raises:
            InputError: height or width is not a multiple of `patch`, or differs from that of the learned positions.
        """
        x = PatchEmbedding(self.patch, self._dim, self.dtype, name="patch_embed")(images.astype(self.dtype))
        if self.pool == "class":
            token = self.param("cls_token", nn.initializers.normal(1e-6), (1, 1, self._dim))
            x = jnp.concatenate([jnp.broadcast_to(token.astype(x.dtype), (x.shape[0], 1, self._dim)), x], 1)
        x = x + self._positions(x.shape[1]).astype(x.dtype)
        x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        for index in range(self.depth):
            x = Block(self.heads, self.dropout, self.dtype, name=f"blocks_{index}")(x, train=train, keys=keys)
        if self.pool == "class":
            x = LayerNorm(dtype=self.dtype, name="norm")(x)[:, 0]
        else:
            x = LayerNorm(dtype=self.dtype, name="fc_norm")(x.mean(1))
        return Dense(self.num_classes, dtype=self.dtype, name="head")(x).astype(jnp.float32)

    @property
    def _dim(self) -> int:
        return self.heads * scaled(self.dim // self.heads, self.width)

    def _positions(self, tokens: int) -> jax.Array:
        """The learned positions, float32 [1, tokens, dim]."""
        learned: jax.Array | None = self.get_variable("params", "pos_embed")
        if learned is not None and learned.shape[1] != tokens:
            raise InputError(
                f"the positions of this ViT are those of {learned.shape[1]} tokens, and its images make {tokens}: give "
                "images of the size that it was trained on"
            )
        return self.param("pos_embed", start, (1, tokens, self._dim))


class PatchEmbedding(nn.Module):
    """A dense layer over the pixels of each patch."""

    patch: int
    dim: int
    dtype: Dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Map [batch, height, width, channels] to [batch, patches, dim]."""
        batch, height, width, _ = images.shape
        if height % self.patch or width % self.patch:
            raise InputError(
                f"images of {height}x{width} cannot be cut into patches of {self.patch}x{self.patch}: set model.patch "
                "to a divisor of both"
            )
        size = (self.patch, self.patch)
        lecun = nn.initializers.lecun_normal()
        x = Convolution(self.dim, size, self.patch, "VALID", dtype=self.dtype, kernel_init=lecun, name="proj")(images)
        return x.reshape(batch, -1, self.dim)


def vit_tiny(num_classes: int = 1000, **fields: Any) -> ViT:
    """ViT-Ti/16: 5.7 million parameters; any other field of `ViT` may be given.

    >>> vit_tiny(num_classes=10, patch=4, width=0.5).dim
    192
    """
    return ViT(num_classes, **{"dim": 192, "heads": 3, **fields})


def vit_small(num_classes: int = 1000, **fields: Any) -> ViT:
    """ViT-S/16: 22 million parameters."""
    return ViT(num_classes, **{"dim": 384, "heads": 6, **fields})
