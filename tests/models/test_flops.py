"""Operations are counted as one would by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxnet.models import ZOO
from jaxnet.models.zoo import count_flops


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, "float32")


def layer_flops(layer, x):
    variables = jax.eval_shape(layer.init, jax.random.key(0), x)
    return count_flops(layer.apply, variables, x)


def test_a_convolution():
    """Each of 4x4x16 results sums 3x3x8 products."""
    assert layer_flops(nn.Conv(16, (3, 3), 2), shape(1, 8, 8, 8)) == 2 * 4 * 4 * 16 * 3 * 3 * 8


def test_a_grouped_convolution():
    """Each result sums over its own group of channels alone."""
    assert layer_flops(nn.Conv(16, (3, 3), feature_group_count=4), shape(2, 8, 8, 8)) == 2 * 2 * 8 * 8 * 16 * 3 * 3 * 2


def test_a_dense_layer():
    assert layer_flops(nn.Dense(10), shape(4, 7)) == 2 * 4 * 7 * 10


def test_a_batched_product():
    assert (
        count_flops(lambda a, b: jnp.einsum("bik,bkj->bij", a, b), shape(3, 4, 5), shape(3, 5, 6)) == 2 * 3 * 4 * 5 * 6
    )


def test_what_is_inside_a_loop_counts_each_time():
    def power(x):
        return lax.scan(lambda y, _: (jax.jit(jnp.dot)(y, x), None), x, length=7)[0]

    assert count_flops(power, shape(3, 3)) == 7 * 2 * 3**3


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y @ x, x),
        lambda x: lax.cond(x.sum() < 9, lambda y: y @ x, lambda y: y, x),
    ],
)
def test_what_runs_an_unknown_number_of_times_is_not_counted(loop):
    with pytest.raises(ValueError, match="how often it runs is not known"):
        count_flops(loop, shape(3, 3))


@pytest.mark.parametrize(
    ("name", "published"),
    [("alexnet", 0.714), ("vgg11", 7.609), ("vgg13", 11.308), ("vgg16_bn", 15.47), ("vgg19", 19.632)],
)
def test_networks_have_the_operations_that_torchvision_publishes(name, published):
    """Its GFLOPS are pairs of a multiplication and an addition."""
    function, shapes = ZOO[name].forward()
    assert round(count_flops(function, *shapes) / 2e9, 3) == published
