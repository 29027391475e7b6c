"""Residual networks are those of their papers and have the names of torchvision and timm."""

import collections
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.errors import InputError
from jaxnet.models import ZOO, from_linen, network_options
from jaxnet.models.resnet import ResNet, cifar_resnet, resnet18, resnet50, resnet50_d, resnet50_v1

IMAGES = jnp.asarray(np.random.RandomState(0).standard_normal((2, 12, 12, 1)), "float32")


def shapes(module, image=(32, 32, 3)):
    return jax.eval_shape(from_linen(module).init, jax.random.key(0), jax.ShapeDtypeStruct((1, *image), "float32"))


def count(module):
    return sum(leaf.size for leaf in jax.tree.leaves(shapes(module).params))


def outputs(module, image):
    """Shapes that each layer of the network gives."""

    def apply(images):
        _, seen = module.init_with_output(jax.random.key(0), images, train=False, capture_intermediates=True)
        return {name: layer["__call__"][0] for name, layer in seen["intermediates"].items() if name != "__call__"}

    return {name: leaf.shape[1:] for name, leaf in jax.eval_shape(apply, jnp.zeros((1, *image))).items()}


@pytest.mark.parametrize(("layers", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_networks_of_cifar_have_the_parameters_of_the_paper(layers, millions):
    """Table 6 of He et al. (2016), which has two digits."""
    digits = 1 if layers == 110 else 2
    assert round(count(cifar_resnet(layers)) / 1e6, digits) == millions


def test_the_smallest_network_of_cifar_by_hand():
    convolutions = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert count(cifar_resnet(20)) == convolutions + norms + 64 * 10 + 10 == 269_722


def test_a_padded_shortcut_is_every_other_pixel_and_zeros():
    """The last scales of a new network are zero, so that its blocks are the ReLU of their shortcuts."""
    module, images = cifar_resnet(8), jax.random.normal(jax.random.key(0), (2, 9, 8, 3))
    _, seen = module.init_with_output(jax.random.key(1), images, train=False, capture_intermediates=True)
    first, second, third = (seen["intermediates"][f"layer{stage}_0"]["__call__"][0] for stage in (1, 2, 3))
    assert (first.shape, second.shape, third.shape) == ((2, 9, 8, 16), (2, 5, 4, 32), (2, 3, 2, 64))
    assert (second[..., :16] == first[:, ::2, ::2]).all()
    assert (third[..., :32] == second[:, ::2, ::2]).all()
    assert not second[..., 16:].any()
    assert not third[..., 32:].any()


@pytest.mark.parametrize("fields", [{"average_down": True, "block": "basic"}, {"block": "bottleneck"}])
def test_padded_shortcuts_are_of_basic_blocks(fields):
    with pytest.raises(InputError, match="pad_shortcuts needs basic blocks"):
        ResNet(10, pad_shortcuts=True, **fields)


def test_stages_have_the_sizes_of_the_paper():
    """Table 1 of He et al. (2016)."""
    seen = outputs(resnet50(width=0.125), (224, 224, 3))
    assert seen["conv1"] == (112, 112, 8)
    assert [seen[f"layer{stage}_0"] for stage in (1, 2, 3, 4)] == [
        (56, 56, 32),
        (28, 28, 64),
        (14, 14, 128),
        (7, 7, 256),
    ]
    assert outputs(resnet18(stem="small", width=0.125), (28, 28, 1))["layer1_1"] == (28, 28, 8)


def test_versions_1_and_1_5_stride_in_another_convolution():
    one, half = (outputs(f(width=0.125).clone(depths=(1, 1)), (64, 64, 3)) for f in (resnet50_v1, resnet50))
    assert one == half
    inner = [
        outputs_of_block(f(width=0.125).clone(depths=(1, 1)))["conv1"]["__call__"][0].shape[1:3]
        for f in (resnet50_v1, resnet50)
    ]
    assert inner == [(8, 8), (16, 16)]


def outputs_of_block(module):
    def apply(images):
        _, seen = module.init_with_output(jax.random.key(0), images, train=False, capture_intermediates=True)
        return seen["intermediates"]["layer2_0"]

    return jax.eval_shape(apply, jnp.zeros((1, 64, 64, 3)))


def test_names_are_those_of_torchvision_and_timm():
    params = shapes(resnet50()).params
    assert set(params) == {"conv1", "bn1", "fc"} | {
        f"layer{stage}_{index}" for stage, depth in enumerate((3, 4, 6, 3), 1) for index in range(depth)
    }
    first = {f"{kind}{index}" for kind in ("conv", "bn") for index in (1, 2, 3)}
    assert set(params["layer1_0"]) == first | {"downsample_0", "downsample_1"}
    assert set(params["layer1_1"]) == first
    deep = shapes(resnet50_d()).params
    assert {"conv1_0", "conv1_1", "conv1_3", "conv1_4", "conv1_6", "bn1"} < set(deep)
    assert {"downsample_1", "downsample_2"} < set(deep["layer2_0"])


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_a_residual_block_starts_as_its_shortcut(kind):
    """The last scale of each block is zero (Goyal et al., 2017), so depth changes nothing at first."""
    shallow, deep = (from_linen(ResNet(10, (n,), kind, "small", channels=8)) for n in (1, 2))
    variables = jax.jit(deep.init)(jax.random.key(0), IMAGES)
    keep = ("conv1", "bn1", "layer1_0", "fc")
    params = {name: variables.params[name] for name in keep}
    stats = {"batch_stats": {name: variables.stats["batch_stats"][name] for name in ("bn1", "layer1_0")}}
    ours, wanted = (
        jax.jit(lambda *given, model=model: model.apply(*given, IMAGES, train=False, keys=None)[0])(*given)
        for model, given in ((deep, variables), (shallow, (params, stats)))
    )
    np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_fields_are_plain_so_that_a_config_holds_them():
    module = ZOO["resnet50_d"].build(num_classes=7, dtype="bfloat16", width=0.5)
    fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(ResNet)}
    assert (fields["stem"], fields["average_down"], fields["dtype"], fields["width"]) == ("deep", True, "bfloat16", 0.5)


def test_wrong_fields_are_refused():
    with pytest.raises(InputError, match="layers must be 6 n \\+ 2, such as 20, 32 or 56, got 18"):
        cifar_resnet(18)
    with pytest.raises(InputError, match="the basic block has no 1x1 convolution"):
        resnet18(stride_in_1x1=True)
    with pytest.raises(InputError, match="depths must be one or more numbers of at least 1"):
        ResNet(10, ())
    with pytest.raises(InputError, match="width must be above 0, got -1"):
        shapes(resnet18(width=-1))


def test_no_block_is_computed_anew_for_each_that_follows():
    """XLA:CPU, left alone, computes the end of an early block for every later one: 12, 9, 6 times and so on."""
    module, images = cifar_resnet(20), jnp.zeros((2, 16, 16, 3))
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), images, train=False))

    def loss(params, stats):
        outputs, _ = module.apply({"params": params, "batch_stats": stats}, images, train=True, mutable=["batch_stats"])
        return outputs.sum()

    gradient = jax.jit(jax.grad(loss), compiler_options=network_options("cpu"))
    compiled = gradient.lower(variables["params"], variables["batch_stats"]).compile().as_text()
    times = collections.Counter(re.findall(r" maximum\(.*/(layer\d_\d)/jit\(relu\)/max", compiled))
    assert len(times) == 9
    assert len(set(times.values())) == 1, times
