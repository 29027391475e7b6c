"""The workloads are what they are called, and can be trained on for long."""

import math

import jax
import numpy as np
import pytest

from jaxnet.comm import make_mesh
from jaxnet.cost.shapes import SIZES
from jaxnet.cost.workloads import LOSSES, initial_values, named_workload
from jaxnet.errors import InputError


def parameters(name):
    return [math.prod(leaf) for leaf in SIZES[name].leaves]


def test_resnet50_has_its_161_gradients():
    """25,557,032 parameters: the count of every published ResNet-50 with 1000 classes."""
    sizes = parameters("resnet50")
    assert len(sizes) == 161
    assert sum(sizes) == 25_557_032
    assert sum(len(leaf) == 4 for leaf in SIZES["resnet50"].leaves) == 53


def test_sizes_of_the_others():
    assert parameters("dense") == [1024 * 1024] * 8
    assert parameters("small") == [256] * 64  # 1 KB each
    vgg, odd = parameters("vgg"), parameters("odd")
    assert max(vgg) / sum(vgg) > 0.75
    assert max(odd) / sum(odd) == pytest.approx(0.7, abs=0.01)
    assert all(side % 2 for leaf in SIZES["odd"].leaves for side in leaf)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "resnet50")) for name in SIZES]
)
def test_every_leaf_has_a_gradient_and_steps_lower_the_loss(name):
    sizes, of = SIZES[name], LOSSES[name]
    params = initial_values(sizes)
    x = np.random.default_rng(0).standard_normal((2, *sizes.example), np.float32)
    loss, grads = jax.jit(jax.value_and_grad(of))(params, x)
    assert np.isfinite(loss)
    assert [grad.shape for grad in grads] == list(sizes.leaves)
    assert all(np.isfinite(grad).all() and np.abs(grad).max() > 0 for grad in grads)
    square = sum(float((grad**2).sum()) for grad in grads)
    step = 0.01 * float(loss) / square
    after = jax.jit(of)([p - step * g for p, g in zip(params, grads, strict=True)], x)
    assert float(after) < float(loss)


def test_an_unknown_workload():
    with pytest.raises(InputError, match="no workload 'vgg16'; there are: dense, vgg, resnet50, odd, small"):
        named_workload("vgg16", make_mesh(1))
