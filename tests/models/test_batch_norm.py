"""BatchNorm beside Flax's: values, gradients, running averages, and statistics that devices share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.models.layers import BatchNorm


def example(seed=0):
    """Images, variables that are not those of the start, and a cotangent."""
    random = np.random.RandomState(seed)
    x, cotangent = (random.standard_normal((6, 5, 4, 3)).astype(np.float32) for _ in range(2))
    scale, bias, mean = random.standard_normal((3, 3)).astype(np.float32)
    stats = {"mean": mean, "var": np.exp(mean)}
    return 2 * x + 1, {"params": {"scale": scale, "bias": bias}, "batch_stats": stats}, cotangent


def outcome(norm, x, variables, cotangent):
    def apply(x, params):
        return norm.apply({**variables, "params": params}, x, mutable=["batch_stats"])

    y, pull, changed = jax.vjp(apply, x, variables["params"], has_aux=True)
    return y, pull(jnp.asarray(cotangent, y.dtype)), changed


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 3e-2), ("float16", 4e-3)])
def test_it_is_that_of_flax(dtype, tolerance, train):
    x, variables, cotangent = example()
    x = jnp.asarray(x, dtype)
    ours = BatchNorm((), dtype, train=train, epsilon=1e-3, momentum=0.8)
    theirs = nn.BatchNorm(use_running_average=not train, dtype=dtype, epsilon=1e-3, momentum=0.8)
    got, wanted = (outcome(norm, x, variables, cotangent) for norm in (ours, theirs))
    for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert mine.dtype == other.dtype
        other = np.asarray(other, np.float32)
        np.testing.assert_allclose(np.asarray(mine, np.float32), other, atol=tolerance * max(1, abs(other).max()))


@pytest.mark.parametrize("zero", [True, False])
def test_it_has_the_variables_of_flax(zero):
    x, _, _ = example()
    start = nn.initializers.zeros if zero else nn.initializers.ones
    ours = BatchNorm((), "float32", train=True, zero=zero).init(jax.random.key(0), x)
    theirs = nn.BatchNorm(use_running_average=False, scale_init=start).init(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_devices_that_share_an_axis_normalize_by_the_batch_of_all():
    x, variables, cotangent = example()
    y, (slope, _), changed = outcome(BatchNorm((), "float32", train=True), x, variables, cotangent)
    shared = BatchNorm(("device",), "float32", train=True)

    def on_each(x, cotangent):
        return outcome(shared, x, variables, cotangent)

    parts = (jnp.reshape(value, (3, 2, *value.shape[1:])) for value in (x, cotangent))
    own_y, (own_slope, _), own_changed = jax.vmap(on_each, axis_name="device")(*parts)
    np.testing.assert_allclose(np.reshape(own_y, y.shape), y, atol=1e-5)
    np.testing.assert_allclose(np.reshape(own_slope, slope.shape), slope, atol=1e-5)
    for mine, other in zip(jax.tree.leaves(own_changed), jax.tree.leaves(changed), strict=True):
        np.testing.assert_allclose(mine, np.broadcast_to(other, mine.shape), rtol=1e-5)


def test_channels_that_never_change_come_out_as_the_bias():
    x = jnp.full((4, 3, 3, 2), 1000.0)
    variables = {"params": {"scale": jnp.ones(2), "bias": jnp.array([0.5, -1.0])}}
    variables["batch_stats"] = {"mean": jnp.zeros(2), "var": jnp.ones(2)}
    y, _ = BatchNorm((), "float32", train=True).apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(y, jnp.broadcast_to(jnp.array([0.5, -1.0]), x.shape), atol=0.1)


def test_it_takes_the_constants_of_other_networks():
    x = np.random.RandomState(0).standard_normal((16, 4)).astype(np.float32) * 0.01
    norm = BatchNorm((), "float32", train=True, name="norm", epsilon=1e-3, momentum=0.8)
    variables = norm.init(jax.random.key(0), x)
    y, changed = norm.apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), atol=1e-5)
    np.testing.assert_allclose(changed["batch_stats"]["var"], 0.8 + 0.2 * x.var(0), rtol=1e-5)
