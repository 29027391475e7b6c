"""Networks of the zoo in use: with batches of any size when exported, and with weights from a file."""

import json
from functools import partial

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax import export as jax_export

from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.inference import load
from jaxnet.inference.loading import load_network
from jaxnet.inference.network import Architecture
from jaxnet.models.zoo import ZOO
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.weights import WeightsMetadata, is_auxiliary, write_variables


def architecture(name, **pixels):
    entry = ZOO[name]
    return Architecture(
        entry.build(num_classes=5, width=0.125), ImageClassification(Pixels(**pixels)), Inputs(entry.image, 5)
    )


@pytest.mark.parametrize("name", ["alexnet_2012", "vgg11_bn", "resnet18", "lstm", "vit_tiny"])
def test_a_batch_may_have_any_size(name):
    network = architecture(name)
    (size,) = jax_export.symbolic_shape("size")
    made = jax_export.export(jax.jit(network.predictions))(network.shapes, network.given(size))
    assert made.out_avals[0].shape == (size, 5)


def test_also_where_images_are_resized_on_the_device():
    network = architecture("cifar10_quick", size=40)
    (size,) = jax_export.symbolic_shape("size")
    made = jax_export.export(jax.jit(network.predictions))(network.shapes, network.given(size))
    assert made.out_avals[0].shape == (size, 5)


@pytest.fixture
def weights(tmp_path):
    entry, draw = ZOO["cifar10_quick"], np.random.default_rng(0)
    shapes = Architecture(entry.build(num_classes=10), ImageClassification(), Inputs(entry.image, 10)).shapes
    variables = {name: draw.normal(0, 0.05, leaf.shape).astype(np.float32) for name, leaf in shapes.items()}
    return tmp_path / "net.safetensors", variables


def write(weights, **about):
    path, variables = weights
    write_variables(
        path, variables, WeightsMetadata(**{"model": "cifar10_quick", "num_classes": 10, **SOURCE, **about})
    )
    return path


SOURCE = {"source": "safetensors", "source_file": "x", "source_sha256": "0"}


def test_weights_that_were_imported(weights):
    predictor = load(write(weights))
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    given = predictor(images)
    entry = ZOO["cifar10_quick"]
    pixels = (images / np.float32(255) - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    params = {}
    for name, leaf in weights[1].items():
        _, layer, field = name.split("/")
        params.setdefault(layer, {})[field] = leaf
    logits = entry.build(num_classes=10).apply({"params": params}, pixels, train=False)
    np.testing.assert_allclose(given, jax.nn.softmax(logits), atol=1e-5)
    assert predictor.inputs.resize is None


def test_the_mean_and_std_that_the_import_was_told(weights):
    pixels = lambda **about: load_network(write(weights, **about)).architecture.task.pixels  # noqa: E731
    assert pixels().mean == (0.485, 0.456, 0.406)
    assert pixels(mean=(0.5,), std=(0.4, 0.5, 0.6)) == Pixels((0.5,), (0.4, 0.5, 0.6))


def test_a_file_from_before_there_was_a_mean_is_read(weights):
    path, variables = weights
    about = {"model": "cifar10_quick", "num_classes": 10, **SOURCE, "left_out": []}
    safetensors.numpy.save_file(variables, path, {"about": json.dumps(about)})
    assert load_network(path).architecture.task.pixels.std == (0.229, 0.224, 0.225)


def test_weights_without_auxiliary_heads(tmp_path, monkeypatch):
    entry = ZOO["googlenet_bn"]
    monkeypatch.setitem(ZOO, "googlenet_bn", entry._replace(build=partial(entry.build, width=0.125)))
    whole = architecture("googlenet_bn").shapes
    left_out = [name for name in whole if is_auxiliary(name)]
    assert left_out
    path = tmp_path / "net.safetensors"
    variables = {name: np.zeros(leaf.shape, np.float32) for name, leaf in whole.items() if name not in left_out}
    write((path, variables), model="googlenet_bn", num_classes=5, left_out=left_out)
    assert load_network(path).weights.keys() == variables.keys()
    write((path, variables), model="googlenet_bn", num_classes=5, left_out=[*left_out, "params/fc/kernel"])
    with pytest.raises(InputError, match="lacks params/fc/kernel, which the import left out"):
        load_network(path)


@pytest.mark.parametrize(
    ("about", "options", "words"),
    [
        ({"model": "vgg12"}, {}, "there is no network 'vgg12'; did you mean 'vgg1"),
        ({}, {"model": "lstm"}, "does not hold the weights of lstm: "),
        ({"num_classes": 7}, {}, r"does not hold the weights of cifar10_quick: .*, not float32\[.*7\]"),
        ({"left_out": ("params/ip2/kernel",)}, {}, "lacks params/ip2/kernel, which the import left out"),
        ({"mean": (0.5,)}, {}, "std is None: wanted one number above 0, or one for each of 3 channels"),
        ({"mean": ("x",), "std": (1,)}, {}, "its mean is 'x', wanted a number"),
        ({"mean": (0.5,), "std": (-1,)}, {}, r"std is \[-1\]: wanted one number above 0"),
        ({"mean": (0.5,) * 2, "std": (1,)}, {}, r"mean is \[0.5, 0.5\]: wanted"),
        ({}, {"step": 3}, "holds the weights of one network: leave out step"),
    ],
)
def test_weights_that_do_not_fit(weights, about, options, words):
    with pytest.raises(InputError, match=words):
        load(write(weights, **about), **options)
