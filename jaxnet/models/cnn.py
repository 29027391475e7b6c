"""A small convolutional network for small grey or colour images."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.errors import InputError
from jaxnet.models.batch_norm import BatchNorm
from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import Dtype, ExampleDropout, require_positive, require_rate
from jaxnet.models.pooling import avg_pool, max_pool


class CNN(nn.Module):
    """Blocks of 3x3 convolutions and 2x2 pooling, then two dense layers.

    Attributes:
        num_classes: width of the logits.
        widths: channels of each block; each block halves height and width.
        convs: convolutions a block.
        hidden: units of the hidden dense layer.
        norm: BatchNorm after each convolution.
        dropout: rate before the last layer.
        smooth: GELU and mean pooling instead of ReLU and max pooling, whose kinks turn a difference in the last
            bit into one that grows: for comparing runs that sum in another order.
        dtype: of computation; parameters are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    widths: tuple[int, ...] = (32, 64)
    convs: int = 1
    hidden: int = 128
    norm: bool = False
    dropout: float = 0.0
    smooth: bool = False
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes, widths=self.widths, convs=self.convs, hidden=self.hidden)
        require_rate(self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        _, height, width, _ = images.shape
        halvings = min(height, width).bit_length() - 1
        if len(self.widths) > halvings:
            raise InputError(
                f"images of {height}x{width} are too small for the {len(self.widths)} blocks of model.widths, each of "
                f"which halves them: wanted at most {halvings}"
            )
        activation, pool = (nn.gelu, avg_pool) if self.smooth else (nn.relu, max_pool)
        x = images.astype(self.dtype)
        layer = 0
        for width in self.widths:
            for _ in range(self.convs):
                x = Convolution(width, (3, 3), use_bias=not self.norm, dtype=self.dtype, name=f"conv_{layer}")(x)
                if self.norm:
                    x = BatchNorm(self.norm_axes, self.dtype, train=train, name=f"norm_{layer}")(x)
                x = activation(x)
                layer += 1
            x = pool(x, 2, 2)
        x = x.reshape(x.shape[0], -1)
        x = activation(nn.Dense(self.hidden, dtype=self.dtype, name="dense_0")(x))
        x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        return nn.Dense(self.num_classes, dtype=self.dtype, name="dense_1")(x).astype(jnp.float32)
