"""Pooling as PyTorch and Caffe define it: symmetric padding, and ceil mode, whose last window may reach beyond it."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.errors import InputError


def max_pool(x: jax.Array, size: int, stride: int, padding: int = 0, ceil: bool = False) -> jax.Array:
    """Return the maximum of each window, over [batch, height, width, channels]; padding is never the maximum.

    Equal to `torch.nn.functional.max_pool2d(x, size, stride, padding, ceil_mode=ceil)`.

    Args:
        x: images.
        size: height and width of a window.
        stride: distance between windows.
        padding: on each of the four sides; at most half of `size`.
        ceil: include the last window that starts inside the image and reaches beyond its padding.

    Raises:
        InputError: the image is smaller than a window.

    >>> row = jnp.arange(6.0).reshape(1, 1, 6, 1) * jnp.ones((1, 6, 1, 1))
    >>> max_pool(row, 3, 2).shape, max_pool(row, 3, 2, ceil=True).shape
    ((1, 2, 2, 1), (1, 3, 3, 1))
    """
    _, reach = _windows(x, size, stride, padding, ceil)
    native = partial(nn.max_pool, window_shape=(size, size), strides=(stride, stride), padding=reach)
    pooled: jax.Array = lax.platform_dependent(x, cpu=lambda x: _greatest(x, size, stride, reach), default=native)
    return pooled


def _greatest(x: jax.Array, size: int, stride: int, reach: "Reach") -> jax.Array:
    """Equal `nn.max_pool`, except for the order in which the gradients of overlapping windows are summed.

    XLA's gradient searches the first maximum of each window again and scatters, which takes four times as long on CPUs.
    Columns go first, so that among equals the first of the first row of a window counts.
    """
    return _greatest_along(_greatest_along(x, 2, size, stride, reach[1]), 1, size, stride, reach[0])


def _greatest_along(x: jax.Array, axis: int, size: int, stride: int, reach: tuple[int, int]) -> jax.Array:
    """Return the maximum of each window along one axis: element 0 of all windows, then element 1, and so on.

    Element i of all windows is a slice of every `stride`-th element, and lies in one of `stride` phases. The phases are
    separated once, because the gradient of a strided slice is a sum over the whole axis.
    """
    before, after = reach
    length = before + x.shape[axis] + after
    windows = (length - size) // stride + 1
    periods = windows + (size - 1) // stride
    widths = [(0, 0, 0)] * x.ndim
    widths[axis] = (before, after + periods * stride - length, 0)  # may be negative: cut off what no window needs
    padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), widths)
    by_phase = padded.reshape(*x.shape[:axis], periods, stride, *x.shape[axis + 1 :])
    phases = [lax.index_in_dim(by_phase, phase, axis + 1, keepdims=False) for phase in range(stride)]

    def element(i: int) -> jax.Array:
        return lax.slice_in_dim(phases[i % stride], i // stride, i // stride + windows, axis=axis)

    greatest = element(0)
    for i in range(1, size):
        other = element(i)
        greatest = jnp.where((other > greatest) | jnp.isnan(other), other, greatest)
    return greatest


def avg_pool(
    x: jax.Array, size: int, stride: int, padding: int = 0, ceil: bool = False, count_include_pad: bool = True
) -> jax.Array:
    """Return the mean of each window, over [batch, height, width, channels].

    Equal to `torch.nn.functional.avg_pool2d` with the same arguments, and by default to Caffe's AVE pooling.

    Args:
        x: images.
        size: height and width of a window.
        stride: distance between windows.
        padding: zeros on each of the four sides; at most half of `size`.
        ceil: include the last window that starts inside the image and reaches beyond its padding.
        count_include_pad: divide by the pixels of the window in the padded image, instead of those in the image.
            Neither counts what reaches beyond the padding.

    Raises:
        InputError: the image is smaller than a window.
    """
    counts, reach = _windows(x, size, stride, padding, ceil, count_include_pad)
    places = np.multiply.outer(*counts)[None, :, :, None].astype(np.float32)
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    # The initial value must be a NumPy constant: only then does JAX recognize a sum, whose gradient it knows.
    sums = lax.reduce_window(x.astype(jnp.float32), np.float32(0), lax.add, window, strides, ((0, 0), *reach, (0, 0)))
    return (sums / places).astype(x.dtype)


def adaptive_avg_pool(x: jax.Array, height: int, width: int) -> jax.Array:
    """Map [batch, h, w, channels] to [batch, height, width, channels]: means of windows that cover the image evenly.

    Window i of n over a length L is [floor(i L / n), ceil((i + 1) L / n)), as in `torch.nn.AdaptiveAvgPool2d`. Windows
    overlap if n does not divide L, and repeat if n exceeds it. An image that has the size already is returned as it is.

    >>> adaptive_avg_pool(jnp.arange(5.0).reshape(1, 1, 5, 1), 1, 2).ravel().tolist()
    [1.0, 3.0]
    """
    if x.shape[1:3] == (height, width):
        return x
    rows, columns = (_even_means(*sizes) for sizes in zip(x.shape[1:3], (height, width), strict=True))
    pooled = jnp.einsum("bhwc,ih,jw->bijc", x.astype(jnp.float32), rows, columns, precision=lax.Precision.HIGHEST)
    return pooled.astype(x.dtype)


def _even_means(length: int, windows: int) -> np.ndarray:
    """Return a matrix [windows, length] in which each row takes the mean of its window."""
    weights = np.zeros((windows, length), np.float32)
    for i in range(windows):
        window = slice(i * length // windows, -(-(i + 1) * length // windows))
        weights[i, window] = 1 / (window.stop - window.start)
    return weights


Reach = tuple[tuple[int, int], tuple[int, int]]


def _windows(
    x: jax.Array, size: int, stride: int, padding: int, ceil: bool, count_include_pad: bool = True
) -> tuple[list[np.ndarray], Reach]:
    """Return, for height and width, the pixels that count in each window, and how far windows reach outside."""
    if not 0 <= padding <= size / 2:
        raise ValueError(f"padding must be at least 0 and at most half of the window of {size}, got {padding}")
    height, width = x.shape[1:3]
    reachable = stride - 1 if ceil else 0  # pixels beyond the padding
    if min(height, width) + 2 * padding + reachable < size:
        raise InputError(
            f"the images are too small for this network: {height}x{width} is left where it pools windows of "
            f"{size}x{size}; give larger images"
        )
    counts, reach = [], []
    for length in (height, width):
        starts = _starts(length, size, stride, padding, ceil)
        low, high = (-padding, length + padding) if count_include_pad else (0, length)
        counts.append(np.minimum(starts + size, high) - np.maximum(starts, low))
        reach.append((padding, max(padding, int(starts[-1]) + size - length)))
    return counts, (reach[0], reach[1])


def _starts(length: int, size: int, stride: int, padding: int, ceil: bool) -> np.ndarray:
    """Return where windows start; a negative start lies in the padding before the image."""
    room = length + 2 * padding - size
    starts = np.arange(-padding, room - padding + 1 + (stride - 1 if ceil else 0), stride)
    return starts[starts < length]
