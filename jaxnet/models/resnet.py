"""Residual networks for small images (He et al., 2016, section 4.2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.models.layers import Dtype, batch_norm, require_positive


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    width: int
    stride: int
    dtype: str
    norm_axes: tuple[str, ...]

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """[batch, h, w, c] to [batch, h / stride, w / stride, width]."""

        def norm(name: str, zero: bool = False) -> nn.BatchNorm:
            return batch_norm(self.norm_axes, self.dtype, train=train, name=name, zero=zero)

        def conv(size: int, stride: int, name: str) -> nn.Conv:
            return nn.Conv(self.width, (size, size), (stride, stride), use_bias=False, dtype=self.dtype, name=name)

        y = nn.relu(norm("norm_0")(conv(3, self.stride, "conv_0")(x)))
        y = norm("norm_1", zero=True)(conv(3, 1, "conv_1")(y))
        if x.shape != y.shape:
            x = norm("norm_shortcut")(conv(1, self.stride, "conv_shortcut")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """CIFAR-style ResNet: a 3x3 stem, stages of `blocks` blocks, each but the first at half the size.

    Depth is `6 blocks + 2` with three stages: `blocks=3` is ResNet-20.

    Attributes:
        num_classes: width of the logits.
        blocks: residual blocks a stage.
        widths: channels of each stage.
        dtype: of computation; parameters and statistics are float32.
        norm_axes: mesh axes that share BatchNorm's statistics.
    """

    num_classes: int
    blocks: int = 3
    widths: tuple[int, ...] = (16, 32, 64)
    dtype: Dtype = "float32"
    norm_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes, blocks=self.blocks, widths=self.widths)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        del keys
        x = images.astype(self.dtype)
        x = nn.Conv(self.widths[0], (3, 3), use_bias=False, dtype=self.dtype, name="conv_stem")(x)
        x = nn.relu(batch_norm(self.norm_axes, self.dtype, train=train, name="norm_stem")(x))
        for stage, width in enumerate(self.widths):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                residual = ResidualBlock(width, stride, self.dtype, self.norm_axes, name=f"stage_{stage}_block_{block}")
                x = residual(x, train=train)
        x = x.mean((1, 2))
        return nn.Dense(self.num_classes, dtype=self.dtype, name="dense")(x).astype(jnp.float32)
