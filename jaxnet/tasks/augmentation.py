"""Random changes to training images, on the device: flips, shifts, erasing, colours.

The randomness belongs to the example: its key is a function of (seed, step, row in the data set), so the same images
come out on any number of devices and processes, and after a resume.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxnet.limits import Fraction, Whole


@dataclass(frozen=True)
class Augmentation:
    """The random changes to training images. Colours change first, then flip, shift and erase.

    Attributes:
        flip: mirror left and right with probability 1/2.
        shift: move by up to this many pixels in each direction, and fill with zeros.
        erase: set a square of this side to zero, at a random place (cutout; DeVries and Taylor, 2017); 0: none.
        brightness: b: scale the brightness by a factor between 1 - b and 1 + b.
        contrast: the same for contrast.
        saturation: the same for saturation. Hue, which is seldom changed, stays.
    """

    flip: bool = False
    shift: Whole = 0
    erase: Whole = 0
    brightness: Fraction = 0.0
    contrast: Fraction = 0.0
    saturation: Fraction = 0.0

    def __call__(self, keys: jax.Array, images: jax.Array) -> jax.Array:
        """Augment images [batch, height, width, channels] by keys [batch]."""
        return jax.vmap(self._one)(keys, images)

    def _one(self, key: jax.Array, image: jax.Array) -> jax.Array:
        flip_key, shift_key, erase_key, colour_key = jax.random.split(key, 4)
        if self.brightness or self.contrast or self.saturation:
            image = jitter_colours(colour_key, image, self.brightness, self.contrast, self.saturation)
        if self.flip:
            image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
        if self.shift:
            image = _shift(shift_key, image, self.shift)
        if self.erase:
            image = _erase(erase_key, image, self.erase)
        return image


# ---- Geometry ------------------------------------------------------------------------------------------


def _shift(key: jax.Array, image: jax.Array, by: int) -> jax.Array:
    padded = jnp.pad(image, ((by, by), (by, by), (0, 0)))
    start = jax.random.randint(key, (2,), 0, 2 * by + 1)
    return jax.lax.dynamic_slice(padded, (start[0], start[1], 0), image.shape)


def _erase(key: jax.Array, image: jax.Array, side: int) -> jax.Array:
    height, width, _ = image.shape
    corner = jax.random.randint(key, (2,), 0, jnp.array([height, width])) - side // 2
    along = zip(map(jnp.arange, (height, width)), corner, strict=True)
    inside = [(places >= start) & (places < start + side) for places, start in along]
    hole = inside[0][:, None] & inside[1][None, :]
    return jnp.where(hole[:, :, None], jnp.zeros_like(image), image)


# ---- Colour ---------------------------------------------------------------------------------------------

_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey (ITU-R BT.601)


def jitter_colours(
    key: jax.Array, image: jax.Array, brightness: float, contrast: float, saturation: float
) -> jax.Array:
    """Scale brightness, contrast and saturation of an image by random factors, in this order.

    The image is [height, width, channels] with values 0 to 255. A factor is uniform in `[max(0, 1 - b), 1 + b]`.
    Contrast blends with the mean of the grey image, saturation with the grey image itself, and each result is clipped
    to 0 .. 255.
    """
    factors = [
        jax.random.uniform(part, minval=max(0.0, 1.0 - by), maxval=1.0 + by)
        for part, by in zip(jax.random.split(key, 3), (brightness, contrast, saturation), strict=True)
    ]
    colours = image.astype(jnp.float32)
    if brightness:
        colours = _blend(factors[0], colours, jnp.zeros(()))
    if contrast:
        colours = _blend(factors[1], colours, _grey(colours).mean())
    if saturation:
        colours = _blend(factors[2], colours, _grey(colours))
    return jnp.round(colours).astype(image.dtype)


def _blend(factor: jax.Array, image: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.clip(factor * image + (1 - factor) * other, 0.0, 255.0)


def _grey(image: jax.Array) -> jax.Array:
    """Return the grey image [height, width, 1]: the mean of the channels unless they are red, green and blue."""
    if image.shape[-1] != len(_LUMA):
        return image.mean(-1, keepdims=True)
    return (image * jnp.array(_LUMA).reshape(1, 1, -1)).sum(-1, keepdims=True)
