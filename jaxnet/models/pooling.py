"""Pooling as PyTorch and Caffe define it: symmetric padding, and ceil mode, in which a last window may reach out."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnet.errors import InputError


def max_pool(x: jax.Array, size: int, stride: int, padding: int = 0, ceil: bool = False) -> jax.Array:
    """The greatest of each window, over [batch, height, width, channels]; padding never wins.

    Equal to `torch.nn.functional.max_pool2d(x, size, stride, padding, ceil_mode=ceil)`.

    Args:
        x: images.
        size: height and width of a window.
        stride: between windows.
        padding: on each of the four sides; at most half of `size`.
        ceil: also the last window that starts inside the image and reaches beyond its padding.

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
    """As `nn.max_pool`, but for the order in which the gradients of windows that overlap are summed.

    XLA's gradient looks for the first greatest of each window once more and scatters, on CPUs four times as long.
    Columns go first, so that of equals in a window the first of the first row is the greatest.
    """
    return _greatest_along(_greatest_along(x, 2, size, stride, reach[1]), 1, size, stride, reach[0])


def _greatest_along(x: jax.Array, axis: int, size: int, stride: int, reach: tuple[int, int]) -> jax.Array:
    """Of windows along one axis, place by place.

    A place of all windows is a slice of every `stride`-th element, from one of `stride` phases. The phases are taken
    apart once, because the gradient of a slice with strides is a sum over the whole axis.
    """
    before, after = reach
    length = before + x.shape[axis] + after
    windows = (length - size) // stride + 1
    periods = windows + (size - 1) // stride
    widths = [(0, 0, 0)] * x.ndim
    widths[axis] = (before, after + periods * stride - length, 0)  # after the last window may be cut off
    padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), widths)
    by_phase = padded.reshape(*x.shape[:axis], periods, stride, *x.shape[axis + 1 :])
    phases = [lax.index_in_dim(by_phase, phase, axis + 1, keepdims=False) for phase in range(stride)]

    def place(i: int) -> jax.Array:
        return lax.slice_in_dim(phases[i % stride], i // stride, i // stride + windows, axis=axis)

    greatest = place(0)
    for i in range(1, size):
        other = place(i)
        greatest = jnp.where((other > greatest) | jnp.isnan(other), other, greatest)
    return greatest


def avg_pool(
    x: jax.Array, size: int, stride: int, padding: int = 0, ceil: bool = False, count_include_pad: bool = True
) -> jax.Array:
    """The mean of each window, over [batch, height, width, channels].

    Equal to `torch.nn.functional.avg_pool2d` with the same arguments, and by default to Caffe's AVE pooling.

    Args:
        x: images.
        size: height and width of a window.
        stride: between windows.
        padding: zeros on each of the four sides; at most half of `size`.
        ceil: also the last window that starts inside the image and reaches beyond its padding.
        count_include_pad: divide by the places of the window in the padded image, rather than in the image. What
            reaches beyond the padding is counted by neither.

    Raises:
        InputError: the image is smaller than a window.
    """
    counts, reach = _windows(x, size, stride, padding, ceil, count_include_pad)
    places = np.multiply.outer(*counts)[None, :, :, None].astype(np.float32)
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    # A zero of NumPy: only for a constant does JAX see a sum, whose gradient it knows.
    sums = lax.reduce_window(x.astype(jnp.float32), np.float32(0), lax.add, window, strides, ((0, 0), *reach, (0, 0)))
    return (sums / places).astype(x.dtype)


def adaptive_avg_pool(x: jax.Array, height: int, width: int) -> jax.Array:
    """[batch, h, w, channels] to [batch, height, width, channels]: means of windows that cover the image evenly.

    Window i of n over a length L is [floor(i L / n), ceil((i + 1) L / n)), as in `torch.nn.AdaptiveAvgPool2d`, so
    that windows overlap where n does not divide L, and repeat where n exceeds it. An image of that size already
    stays as it is.

    >>> adaptive_avg_pool(jnp.arange(5.0).reshape(1, 1, 5, 1), 1, 2).ravel().tolist()
    [1.0, 3.0]
    """
    if x.shape[1:3] == (height, width):
        return x
    rows, columns = (_even_means(*sizes) for sizes in zip(x.shape[1:3], (height, width), strict=True))
    pooled = jnp.einsum("bhwc,ih,jw->bijc", x.astype(jnp.float32), rows, columns, precision=lax.Precision.HIGHEST)
    return pooled.astype(x.dtype)


def _even_means(length: int, windows: int) -> np.ndarray:
    """[windows, length]: each row takes the mean of its window."""
    weights = np.zeros((windows, length), np.float32)
    for i in range(windows):
        window = slice(i * length // windows, -(-(i + 1) * length // windows))
        weights[i, window] = 1 / (window.stop - window.start)
    return weights


Reach = tuple[tuple[int, int], tuple[int, int]]


def _windows(
    x: jax.Array, size: int, stride: int, padding: int, ceil: bool, count_include_pad: bool = True
) -> tuple[list[np.ndarray], Reach]:
    """For height and width: the places that count in each window, and how far windows reach before and after."""
    if not 0 <= padding <= size / 2:
        raise ValueError(f"padding must be at least 0 and at most half of the window of {size}, got {padding}")
    height, width = x.shape[1:3]
    reachable = stride - 1 if ceil else 0  # beyond the padding
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
    """Where windows start; before the image where negative."""
    room = length + 2 * padding - size
    starts = np.arange(-padding, room - padding + 1 + (stride - 1 if ceil else 0), stride)
    return starts[starts < length]
