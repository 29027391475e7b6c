"""Network in Network (Lin et al., 2014) for ImageNet, as in the authors' definition in Caffe's model zoo."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnet.models.convolution import Convolution
from jaxnet.models.layers import Dtype, ExampleDropout, normal_init, require_positive, scaled
from jaxnet.models.pooling import max_pool


class NetworkInNetwork(nn.Module):
    """Four convolutions, each followed by two 1x1 convolutions, which are a small dense network at every pixel.

    There is no dense layer at the end: the last 1x1 convolution has one channel per class, and its mean over the map is
    the logit. Those channels have a ReLU too, as in the authors' definition. Weights start normal, biases at 0; the
    deviations suit images in Caffe's scale, 0 to 255 minus the mean.

    Attributes:
        num_classes: width of the logits.
        width: factor on every hidden number of channels.
        dropout: rate before the last three convolutions.
        dtype: dtype of computation; parameters are float32.
    """

    num_classes: int
    width: float = 1.0
    dropout: float = 0.5
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        require_positive(num_classes=self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, keys: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [batch, num_classes], of images [batch, height, width, channels]."""
        channels = [scaled(hidden, self.width) for hidden in (96, 256, 384, 1024)]
        x = images.astype(self.dtype)
        x = self._conv(x, "conv1", channels[0], 11, 0.01, stride=4)
        x = self._pixelwise(x, ("cccp1", "cccp2"), channels[0])
        x = self._conv(x, "conv2", channels[1], 5, 0.05, padding=2)
        x = self._pixelwise(x, ("cccp3", "cccp4"), channels[1])
        x = self._conv(x, "conv3", channels[2], 3, 0.01, padding=1)
        x = self._pixelwise(x, ("cccp5", "cccp6"), channels[2])
        x = ExampleDropout(self.dropout)(x, train=train, keys=keys)
        x = self._conv(x, "conv4", channels[3], 3, 0.05, padding=1)
        x = self._conv(x, "cccp7", channels[3], 1, 0.05)
        x = self._conv(x, "cccp8", self.num_classes, 1, 0.01)
        return x.astype(jnp.float32).mean((1, 2))

    def _pixelwise(self, x: jax.Array, names: tuple[str, str], channels: int) -> jax.Array:
        for name in names:
            x = self._conv(x, name, channels, 1, 0.05)
        return max_pool(x, 3, 2, ceil=True)

    def _conv(
        self, x: jax.Array, name: str, channels: int, size: int, deviation: float, stride: int = 1, padding: int = 0
    ) -> jax.Array:
        init = normal_init(deviation, 1.0 if name == "conv1" else self.width)
        conv = Convolution(channels, (size, size), stride, padding, dtype=self.dtype, kernel_init=init, name=name)
        return nn.relu(conv(x))
