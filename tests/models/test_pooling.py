"""Pooling is what its definition says, place by place."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnet.errors import InputError
from jaxnet.models.pooling import adaptive_avg_pool, avg_pool, max_pool


def windows(length, size, stride, padding, ceil):
    """(start, stop) of each window, by the definition of PyTorch and Caffe; out of the image at either end."""
    count = (math.ceil if ceil else math.floor)((length + 2 * padding - size) / stride) + 1
    if ceil and (count - 1) * stride >= length + padding:
        count -= 1
    return [(i * stride - padding, i * stride - padding + size) for i in range(count)]


def by_loops(x, size, stride, padding, ceil, pool):
    """Each window by itself: `pool(values in the image, places in the padded image)`."""
    _, height, width, _ = x.shape
    rows, columns = (windows(length, size, stride, padding, ceil) for length in (height, width))
    out = np.empty((x.shape[0], len(rows), len(columns), x.shape[3]), x.dtype)
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            inside = x[:, max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
            places = (min(bottom, height + padding) - top) * (min(right, width + padding) - left)
            out[:, i, j] = pool(inside, places)
    return out


@st.composite
def settings_of_pooling(draw):
    size = draw(st.integers(1, 4))
    padding = draw(st.integers(0, size // 2))
    sides = st.integers(max(1, size - 2 * padding), 9)
    shape = (2, draw(sides), draw(sides), 3)
    return shape, (size, draw(st.integers(1, 5)), padding, draw(st.booleans()))


@given(settings_of_pooling())
@settings(max_examples=30, deadline=None)
def test_pooling_equals_a_loop_over_windows(drawn):
    shape, arguments = drawn
    x = np.random.RandomState(0).standard_normal(shape).astype(np.float32) - 2  # where padding with 0 would win
    greatest = by_loops(x, *arguments, lambda inside, _: inside.max((1, 2)))
    # Compiled as a whole: one operation a place of the window would be compiled for each.
    np.testing.assert_array_equal(jax.jit(lambda x: max_pool(x, *arguments))(x), greatest)
    over_padding = by_loops(x, *arguments, lambda inside, places: inside.sum((1, 2)) / places)
    np.testing.assert_allclose(avg_pool(x, *arguments), over_padding, rtol=1e-5, atol=1e-6)
    over_image = by_loops(x, *arguments, lambda inside, _: inside.mean((1, 2)))
    np.testing.assert_allclose(avg_pool(x, *arguments, count_include_pad=False), over_image, rtol=1e-5, atol=1e-6)


@given(*[st.integers(1, 9)] * 4)
@settings(max_examples=15, deadline=None)
def test_adaptive_pooling_equals_a_loop_over_windows(height, width, rows, columns):
    x = np.random.RandomState(0).standard_normal((2, height, width, 3)).astype(np.float32)
    out = np.empty((2, rows, columns, 3), np.float32)
    for i in range(rows):
        for j in range(columns):
            top, bottom = math.floor(i * height / rows), math.ceil((i + 1) * height / rows)
            left, right = math.floor(j * width / columns), math.ceil((j + 1) * width / columns)
            out[:, i, j] = x[:, top:bottom, left:right].mean((1, 2))
    np.testing.assert_allclose(adaptive_avg_pool(x, rows, columns), out, atol=1e-6)


def test_means_of_large_float16_values_do_not_overflow():
    x = jnp.full((1, 4, 4, 1), 6e4, "float16")
    for pooled in (avg_pool(x, 2, 2), adaptive_avg_pool(x, 3, 3)):
        assert pooled.dtype == jnp.float16
        np.testing.assert_allclose(pooled, 6e4, rtol=1e-3)


def test_the_gradient_of_a_maximum_goes_to_the_one_place():
    x = jnp.asarray(np.random.RandomState(0).permutation(25).reshape(1, 5, 5, 1), "float32")
    gradient = jax.grad(lambda x: max_pool(x, 3, 2, padding=1, ceil=True).sum())(x)
    winners = by_loops(np.asarray(x), 3, 2, 1, True, lambda inside, _: inside.max((1, 2))).ravel()
    expected = [np.count_nonzero(winners == value) for value in np.ravel(x)]
    np.testing.assert_array_equal(np.ravel(gradient), expected)


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [
        (2, 2, 0),
        (3, 2, 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 3, 0), (5, 3, 2), (3, 1, 1), (4, 1, 2)]),
    ],
)
def test_of_equals_the_first_has_the_gradient_as_in_xla(size, stride, padding):
    random = np.random.RandomState(0)
    x = jnp.asarray(random.randint(-1, 2, (2, 7, 8, 3)), "float32")
    sides = ((padding, padding),) * 2
    tangent = jnp.asarray(random.standard_normal(x.shape), "float32")

    def gradient(pool):
        outputs, pull = jax.vjp(pool, x)
        cotangent = (jnp.arange(outputs.size) * 37 % 101 - 50.0).reshape(outputs.shape)  # whole: sums in any order
        return outputs, pull(cotangent)[0], jax.jvp(pool, [x], [tangent])[1]

    got = gradient(lambda x: max_pool(x, size, stride, padding))
    wanted = gradient(lambda x: nn.max_pool(x, (size, size), (stride, stride), sides))
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_not_a_number_stays_one():
    x = jnp.zeros((1, 4, 4, 1)).at[0, 1, 2, 0].set(jnp.nan)
    assert np.isnan(max_pool(x, 2, 2)).ravel().tolist() == [False, True, False, False]


def test_an_image_smaller_than_a_window_is_the_users_mistake():
    x = jnp.zeros((1, 2, 5, 1))
    for pool in (max_pool, avg_pool):
        with pytest.raises(InputError, match="2x5 is left where it pools windows of 3x3; give larger images"):
            pool(x, 3, 2)


def test_padding_beyond_half_of_a_window_is_refused():
    with pytest.raises(ValueError, match="at most half of the window of 3, got 2"):
        max_pool(jnp.zeros((1, 8, 8, 1)), 3, 2, padding=2)
