"""The networks of 2012 to 2015 run forward and backward, start as their papers say, and refuse what they cannot do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnet.errors import InputError
from jaxnet.models import VGG, ZOO, AlexNet, AlexNet2012, Cifar10, NetworkInNetwork, from_linen

NAMES = ("alexnet", "alexnet_2012", "caffenet", "nin", "cifar10_quick", "cifar10_full", "vgg11_bn")
LABELS = jnp.arange(4) % 3
# A generator and options that compile in a third of the time.
KEY = jax.random.key(0, impl="unsafe_rbg")
FAST = {"xla_backend_optimization_level": 0}


def images(side=64):
    return jnp.asarray(np.random.RandomState(0).standard_normal((4, side, side, 3)), "float32")


def some_values(shapes):
    """Weights that keep the size of what passes, whatever a network starts with."""
    random = np.random.RandomState(1)

    def values(path, leaf):
        fan_in = leaf.size // leaf.shape[-1]
        noise = random.standard_normal(leaf.shape) * np.sqrt(2 / fan_in)
        return jnp.asarray(noise if path[-1].key == "kernel" else 1 + 0.1 * noise, leaf.dtype)

    return jax.tree.map_with_path(values, shapes)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_a_narrow_network_learns_from_small_images(name):
    model = from_linen(ZOO[name].build(num_classes=3, width=0.125))
    x = images(32) if name.startswith("cifar10") else images()
    params, stats = some_values(jax.eval_shape(model.init, KEY, x))

    def loss(params):
        logits, _ = model.apply(params, stats, x, train=True, keys=jax.random.split(KEY, 4))
        return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()

    value, gradients = jax.jit(jax.value_and_grad(loss), compiler_options=FAST)(params)
    assert np.isfinite(value)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(gradient).all(), jax.tree_util.keystr(path)
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


def first_params(module):
    """As initialized; a network of a quarter of the width has twice the deviations of its source."""
    return jax.jit(from_linen(module).init, compiler_options=FAST)(KEY, images()).params


def test_alexnet_2012_starts_as_the_paper_says():
    params = first_params(AlexNet2012(10, width=0.25))
    for name, layer in params.items():
        assert np.std(layer["kernel"]) == pytest.approx(0.01 if name == "conv1" else 0.02, rel=0.1)
        assert set(np.ravel(layer["bias"])) == {1.0 if name in ("conv2", "conv4", "conv5", "fc6", "fc7") else 0.0}


def test_caffenet_starts_its_hidden_dense_layers_closer_to_zero():
    params = first_params(AlexNet2012(10, caffe=True, width=0.25))
    assert np.std(params["fc6"]["kernel"]) == pytest.approx(0.01, rel=0.1)
    assert np.std(params["conv3"]["kernel"]) == pytest.approx(0.02, rel=0.1)


def test_alexnet_starts_uniform_within_the_root_of_a_units_inputs():
    params = first_params(AlexNet(10, width=0.25))
    for layer in params.values():
        inputs = layer["kernel"].size // layer["kernel"].shape[-1]
        for leaf in layer.values():
            greatest = np.abs(leaf).max() * np.sqrt(inputs)
            assert 0.5 < greatest <= 1.0001
        assert np.std(layer["kernel"]) * np.sqrt(3 * inputs) == pytest.approx(1, rel=0.1)


def test_vgg_starts_by_the_units_that_a_convolution_feeds():
    params = first_params(VGG(10, depth=11, width=0.25))
    kernel = params["features_3"]["kernel"]
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (9 * kernel.shape[-1])), rel=0.1)
    assert np.std(params["classifier_3"]["kernel"]) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("module", "deviations"),
    [
        (NetworkInNetwork(10), {"conv1": 0.01, "cccp1": 0.05, "conv2": 0.05, "conv3": 0.01, "cccp8": 0.01}),
        (Cifar10(10), {"conv1": 0.0001, "conv2": 0.01, "ip1": 0.1, "ip2": 0.1}),
        (Cifar10(10, full=True), {"conv1": 0.0001, "conv3": 0.01, "ip1": 0.01}),
    ],
    ids=["nin", "cifar10_quick", "cifar10_full"],
)
def test_networks_of_caffe_start_as_defined(module, deviations):
    params = first_params(module)
    for name, deviation in deviations.items():
        assert np.std(params[name]["kernel"]) == pytest.approx(deviation, rel=0.1)
        assert not np.any(params[name]["bias"])


def test_two_groups_see_half_of_the_channels_each():
    params = jax.eval_shape(from_linen(AlexNet2012(10, width=0.25)).init, KEY, images()).params
    assert params["conv1"]["kernel"].shape[-1] == 24
    assert [params[name]["kernel"].shape[2] for name in ("conv2", "conv3", "conv4", "conv5")] == [12, 64, 48, 48]


def test_a_depth_that_is_none_of_the_papers_is_refused():
    with pytest.raises(InputError, match="depth must be one of 11, 13, 16, 19, got 12"):
        VGG(10, depth=12)


@pytest.mark.parametrize("name", NAMES)
def test_images_too_small_for_the_network_are_refused(name):
    with pytest.raises(InputError, match="the images are too small for this network"):
        first_params_of_tiny(name)


def first_params_of_tiny(name):
    model = from_linen(ZOO[name].build(num_classes=3, width=0.125))
    return jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1, 1, 3), "float32"))
