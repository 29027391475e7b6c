"""Every network that has a name is of the size that its source says, and fits what a user asks of it."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest

from jaxnet.models import ZOO
from jaxnet.models.layers import scaled
from jaxnet.models.zoo import count_flops

every_network = pytest.mark.parametrize("name", ZOO)
# Deeper or wider than another of one class: what depends on the class alone, that other shows.
SIBLINGS = {"caffenet", "vgg13", "vgg16", "vgg19", "vgg13_bn", "vgg16_bn", "vgg19_bn", "resnet34", "resnet101"}
SIBLINGS |= {"resnet152", "cifar_resnet32", "cifar_resnet44", "cifar_resnet56", "cifar_resnet110", "vit_small"}
every_class = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SIBLINGS)) for name in ZOO]
)


@cache
def forward(name):
    """A network as it is evaluated, and the shapes of what it takes: JAX keeps what it traces of one function."""
    return ZOO[name].forward()


def abstract(entry, image, **fields):
    """Parameters, and logits of evaluation, for a batch of 2: shapes alone."""
    module = entry.build(**fields)
    images = jax.ShapeDtypeStruct((2, *image), "float32")
    logits, variables = jax.eval_shape(partial(module.init_with_output, train=False), jax.random.key(0), images)
    return variables["params"], logits


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@every_network
def test_parameters_are_those_of_the_source(name):
    entry = ZOO[name]
    function, shapes = forward(name)
    logits, _ = jax.eval_shape(function, *shapes)
    assert count(shapes[0]) == entry.parameters
    assert (logits.shape, logits.dtype) == ((1, entry.classes), jnp.float32)


@every_network
def test_operations_are_those_that_are_counted(name):
    function, shapes = forward(name)
    assert count_flops(function, *shapes) == ZOO[name].flops


@every_class
def test_a_narrow_network_in_half_precision_keeps_wide_parameters_and_logits(name):
    entry = ZOO[name]
    params, logits = abstract(entry, entry.image, num_classes=7, width=0.125, dtype="float16")
    assert count(params) < entry.parameters / 8
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)


def of_convolution(size, inputs, outputs, groups=1):
    return size * size * inputs // groups * outputs + outputs


def of_dense(inputs, outputs):
    return inputs * outputs + outputs


def test_alexnet_2012_by_hand():
    """Table by table from Caffe's definition, which cites the paper's figure 2."""
    convolutions = (
        of_convolution(11, 3, 96)
        + of_convolution(5, 96, 256, groups=2)
        + of_convolution(3, 256, 384)
        + of_convolution(3, 384, 384, groups=2)
        + of_convolution(3, 384, 256, groups=2)
    )
    dense = of_dense(6 * 6 * 256, 4096) + of_dense(4096, 4096) + of_dense(4096, 1000)
    assert convolutions + dense == ZOO["alexnet_2012"].parameters == ZOO["caffenet"].parameters


def test_network_in_network_by_hand():
    blocks = [(11, 3, 96, 96), (5, 96, 256, 256), (3, 256, 384, 384), (3, 384, 1024, 1000)]
    total = sum(
        of_convolution(size, inputs, hidden) + of_convolution(1, hidden, hidden) + of_convolution(1, hidden, outputs)
        for size, inputs, hidden, outputs in blocks
    )
    assert total == ZOO["nin"].parameters


def test_caffes_cifar_networks_by_hand():
    convolutions = of_convolution(5, 3, 32) + of_convolution(5, 32, 32) + of_convolution(5, 32, 64)
    assert convolutions + of_dense(4 * 4 * 64, 64) + of_dense(64, 10) == ZOO["cifar10_quick"].parameters
    assert convolutions + of_dense(4 * 4 * 64, 10) == ZOO["cifar10_full"].parameters


def test_width_reaches_every_hidden_layer():
    params, _ = abstract(ZOO["vgg11_bn"], (64, 64, 3), num_classes=5, width=0.25)
    for name, layer in params.items():
        outputs = layer["bias"].shape[0]
        if name == "classifier_6":
            assert outputs == 5
        else:
            assert outputs in {scaled(channels, 0.25) for channels in (64, 128, 256, 512, 4096)}
