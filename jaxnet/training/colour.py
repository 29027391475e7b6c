"""Random brightness, contrast and saturation of one image, as photos are jittered for training."""

import jax
import jax.numpy as jnp

_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey (ITU-R BT.601)


def jittered(key: jax.Array, image: jax.Array, brightness: float, contrast: float, saturation: float) -> jax.Array:
    """An image [height, width, channels] of values 0 to 255 with each property scaled by a random factor.

    A factor is uniform in `[max(0, 1 - b), 1 + b]`. Contrast blends with the mean of the grey image, saturation with
    the grey image itself, each result is cut to 0 .. 255, and the order is always this one.
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
    """[height, width, 1]; of images that are not red, green and blue, the mean of the channels."""
    if image.shape[-1] != len(_LUMA):
        return image.mean(-1, keepdims=True)
    return (image * jnp.array(_LUMA).reshape(1, 1, -1)).sum(-1, keepdims=True)
