"""The shared layers match the definitions of their sources."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.errors import InputError
from jaxnet.models.layers import ExampleDropout, kept_relu, local_response_norm, scaled, spatial_response_norm
from jaxnet.models.pooling import max_pool


@pytest.mark.parametrize(
    ("channels", "width", "expected"),
    [(64, 1.0, 64), (96, 0.125, 16), (64, 0.01, 8), (192, 0.5, 96), (80, 1.25, 104), (4096, 0.125, 512)],
)
def test_scaled_channels_are_multiples_of_eight(channels, width, expected):
    assert scaled(channels, width) == expected


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf")])
def test_a_width_that_leaves_no_channels_is_refused(width):
    with pytest.raises(InputError, match="width must be above 0"):
        scaled(64, width)


def across_channels(x, size, alpha, beta, k):
    out = np.empty_like(x)
    channels, half = x.shape[-1], size // 2
    for place in np.ndindex(x.shape):
        near = x[place[:-1]][max(place[-1] - half, 0) : min(place[-1] + half + 1, channels)]
        out[place] = x[place] / (k + alpha / size * (near**2).sum()) ** beta
    return out


def within_a_channel(x, size, alpha, beta):
    out = np.empty_like(x)
    half = size // 2
    for b, i, j, c in np.ndindex(x.shape):
        near = x[b, max(i - half, 0) : i + half + 1, max(j - half, 0) : j + half + 1, c]
        out[b, i, j, c] = x[b, i, j, c] / (1 + alpha / size**2 * (near**2).sum()) ** beta
    return out


@pytest.mark.parametrize(
    "constants", [(5, 1e-4, 0.75, 1.0), (3, 2.0, 0.5, 2.0), (1, 0.5, 1.0, 1.0), (9, 1.0, 0.75, 0.5)]
)
def test_local_response_norm_equals_a_loop_over_places(constants):
    x = 30 * np.random.RandomState(0).standard_normal((2, 3, 2, 7))
    normalized = local_response_norm(jnp.asarray(x, "float32"), *constants)
    np.testing.assert_allclose(normalized, across_channels(x, *constants), rtol=1e-5)


@pytest.mark.parametrize("constants", [(3, 5e-5, 0.75), (5, 1.0, 0.5)])
def test_spatial_response_norm_equals_a_loop_over_places(constants):
    x = 30 * np.random.RandomState(0).standard_normal((2, 4, 6, 3))
    normalized = spatial_response_norm(jnp.asarray(x, "float32"), *constants)
    np.testing.assert_allclose(normalized, within_a_channel(x, *constants), rtol=1e-5)


@pytest.mark.parametrize("norm", [local_response_norm, spatial_response_norm])
def test_response_norm_of_float16_squares_in_float32(norm):
    x = jnp.full((1, 2, 2, 8), 1000.0)
    narrow = norm(x.astype("float16"))
    assert narrow.dtype == jnp.float16
    np.testing.assert_allclose(narrow, norm(x), rtol=1e-3)


@pytest.mark.parametrize("norm", [local_response_norm, spatial_response_norm])
def test_response_norm_needs_a_middle(norm):
    with pytest.raises(ValueError, match="odd size"):
        norm(jnp.ones((1, 2, 2, 4)), size=4)


class TwoDropouts(nn.Module):
    """The same values through two layers of dropout."""

    @nn.compact
    def __call__(self, x, keys):
        return [ExampleDropout(0.5)(x, train=True, keys=keys) for _ in range(2)]


def test_each_layer_of_dropout_drops_other_units():
    first, second = TwoDropouts().apply({}, jnp.ones((4, 64)), jax.random.split(jax.random.key(0), 4))
    assert 0.3 < np.mean(first == second) < 0.7
    again, _ = TwoDropouts().apply({}, jnp.ones((4, 64)), jax.random.split(jax.random.key(0), 4))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_of_dropout_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match="dropout must be at least 0 and below 1"):
        ExampleDropout(rate)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_relu_that_is_kept_is_that_of_flax(dtype):
    x = jnp.array([-jnp.inf, -2.0, -0.0, 0.0, 1e-6, 3.0, jnp.inf, jnp.nan], dtype)
    tangent = jnp.arange(1, 9, dtype=dtype)

    def outcome(relu):
        values, pull = jax.vjp(relu, x)
        return values, pull(tangent), jax.jvp(relu, [x], [tangent]), jax.hessian(lambda x: relu(x).sum())(x)

    for got, wanted in zip(*(jax.tree.leaves(outcome(relu)) for relu in (kept_relu, nn.relu)), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(wanted, np.float32))


def test_a_relu_after_pooling_is_one_before_it():
    """To the bits of the gradient: where the greatest is not above 0, nothing of the window has any."""
    random = np.random.RandomState(0)
    x = jnp.asarray(random.randint(-3, 3, (2, 9, 9, 3)), "float32")

    def outcome(pool):
        pooled, pull = jax.vjp(pool, x)
        return pooled, *pull((jnp.arange(pooled.size) % 7 - 3.0).reshape(pooled.shape))

    before = outcome(lambda x: max_pool(nn.relu(x), 3, 2, padding=1))
    after = outcome(lambda x: nn.relu(max_pool(x, 3, 2, padding=1)))
    jax.tree.map(np.testing.assert_array_equal, before, after)
