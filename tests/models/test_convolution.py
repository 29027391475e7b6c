"""The convolution of the networks against XLA's own, and against Flax's layer."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxnet.models.convolution import Convolution, convolve


def reference(images, kernel, stride, padding, groups):
    """XLA's convolution, whatever the kernel."""
    return lax.conv_general_dilated(
        images,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2 if isinstance(padding, int) else padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", ["SAME", 0, 1, ((0, 1), (1, 0))])
@pytest.mark.parametrize("groups", [1, 2])
def test_results_and_gradients_are_those_of_xla(size, stride, padding, groups):
    draw = np.random.RandomState(size + 10 * stride)
    images = draw.normal(size=(2, 5, 4, 4)).astype("float32")
    kernel = draw.normal(size=(size, size, 4 // groups, 6)).astype("float32")

    def both(function):
        with jax.disable_jit():  # a compilation for each shape would take most of the time
            outputs, pull = jax.vjp(lambda *given: function(*given, stride, padding, groups), images, kernel)
            return outputs, *pull(jnp.cos(outputs))

    for got, wanted in zip(both(convolve), both(reference), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kernel", "stride"), [((1, 1), 1), ((1, 1), 2), ((3, 3), 2), ((1, 3), 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_layer_is_flaxs_with_its_names_and_initial_values(kernel, stride, dtype):
    images = jax.random.normal(jax.random.key(0), (2, 5, 5, 3))
    ours, flaxs = (of(4, kernel, stride, dtype=dtype, name="layer") for of in (Convolution, nn.Conv))
    wanted, variables = flaxs.init_with_output(jax.random.key(1), images)
    got, own = ours.init_with_output(jax.random.key(1), images)
    jax.tree.map(np.testing.assert_array_equal, own, variables)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(
        got.astype("float32"), wanted.astype("float32"), rtol=1e-2 if dtype != "float32" else 1e-5
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_one_by_one_compiles_to_products_of_matrices_alone(stride):
    def loss(images, kernel):
        return (convolve(images, kernel, stride, 0) ** 2).sum()

    shapes = jax.ShapeDtypeStruct((2, 8, 8, 3), "float32"), jax.ShapeDtypeStruct((1, 1, 3, 5), "float32")
    text = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).as_text()
    assert "dot_general" in text
    assert "convolution" not in text
