"""GoogLeNet and Inception v3 are those of their papers and of torchvision; auxiliary heads are for training only."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet.errors import InputError
from jaxnet.models import GoogLeNet, Heads, InceptionV3, from_linen
from jaxnet.models.googlenet import AuxiliaryHead
from jaxnet.models.inception import Style


def shapes(module, image=(224, 224, 3)):
    return jax.eval_shape(from_linen(module).init, jax.random.key(0), jax.ShapeDtypeStruct((1, *image), "float32"))


def count(module, image=(224, 224, 3)):
    return sum(leaf.size for leaf in jax.tree.leaves(shapes(module, image).params))


def outputs(module, image):
    """Shapes that each layer of the network gives."""

    def apply(images):
        _, seen = module.init_with_output(jax.random.key(0), images, train=False, capture_intermediates=True)
        return {name: layer["__call__"][0] for name, layer in seen["intermediates"].items() if name != "__call__"}

    return {name: leaf.shape[1:] for name, leaf in jax.eval_shape(apply, jnp.zeros((1, *image))).items()}


TABLE = {
    "conv1": (112, 112, 64),
    "conv3": (56, 56, 192),
    "inception3a": (28, 28, 256),
    "inception3b": (28, 28, 480),
    "inception4a": (14, 14, 512),
    "inception4b": (14, 14, 512),
    "inception4c": (14, 14, 512),
    "inception4d": (14, 14, 528),
    "inception4e": (14, 14, 832),
    "inception5a": (7, 7, 832),
    "inception5b": (7, 7, 1024),
}


@pytest.mark.parametrize("norm", [False, True], ids=["paper", "torchvision"])
def test_googlenet_has_the_sizes_of_the_papers_table_1(norm):
    seen = outputs(GoogLeNet(1000, norm=norm), (224, 224, 3))
    assert {name: seen[name] for name in TABLE} == TABLE


def test_inception_v3_has_the_sizes_of_the_papers_table_1():
    seen = outputs(InceptionV3(1000), (299, 299, 3))
    assert [seen[name] for name in ("Mixed_5b", "Mixed_5d", "Mixed_6a", "Mixed_6e", "Mixed_7a", "Mixed_7c")] == [
        (35, 35, 256),
        (35, 35, 288),
        (17, 17, 768),
        (17, 17, 768),
        (8, 8, 1280),
        (8, 8, 2048),
    ]


def test_parameters_without_auxiliary_heads():
    assert count(GoogLeNet(1000, norm=True, auxiliary=False)) == 6_624_904
    assert count(GoogLeNet(1000, auxiliary=False)) == 6_998_552
    assert count(InceptionV3(1000, auxiliary=False), (299, 299, 3)) == 23_834_568


def test_the_papers_googlenet_by_hand():
    """Table 1 of the paper, each convolution with its biases, and its section 5 on the auxiliary heads."""
    channels, total = 192, 64 * (7 * 7 * 3 + 1) + 64 * (64 + 1) + 192 * (9 * 64 + 1)
    for one, reduce3, three, reduce5, five, pooled in (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ):
        total += (channels + 1) * (one + reduce3 + reduce5 + pooled)
        total += three * (9 * reduce3 + 1) + five * (25 * reduce5 + 1)
        channels = one + three + five + pooled
    total += 1000 * (1024 + 1)
    heads = sum(128 * (inputs + 1) + 1024 * (16 * 128 + 1) + 1000 * (1024 + 1) for inputs in (512, 528))
    assert count(GoogLeNet(1000, auxiliary=False)) == total
    assert count(GoogLeNet(1000)) == total + heads == 13_378_280


def test_torchvisions_googlenet_has_windows_of_3x3_for_those_of_5x5():
    paper, torchvision = (shapes(GoogLeNet(10, norm=norm, width=0.125)).params for norm in (False, True))
    assert paper["inception3a"]["branch3_1"]["conv"]["kernel"].shape[:2] == (5, 5)
    assert torchvision["inception3a"]["branch3_1"]["conv"]["kernel"].shape[:2] == (3, 3)
    assert set(torchvision["conv1"]) == {"conv", "bn"}


NETWORKS = {
    "googlenet": (GoogLeNet(5, width=0.125), 64, [0.3, 0.3]),
    "googlenet_bn": (GoogLeNet(5, norm=True, width=0.125), 28, [0.3, 0.3]),
    "inception_v3": (InceptionV3(5, width=0.125), 75, [0.4]),
}


@pytest.mark.parametrize(("module", "side", "weights"), NETWORKS.values(), ids=NETWORKS)
def test_auxiliary_heads_are_there_in_training_only(module, side, weights):
    model, images = from_linen(module), jax.ShapeDtypeStruct((2, side, side, 3), "float32")
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    params, stats = jax.eval_shape(model.init, jax.random.key(0), images)
    seen = []

    def apply(params, stats, images, keys, train):
        output, _ = model.apply(params, stats, images, train=train, keys=keys)
        seen.append([weight for weight, _ in output.auxiliary] if isinstance(output, Heads) else None)
        return output

    trained = jax.eval_shape(lambda *given: apply(*given, train=True), params, stats, images, keys)
    evaluated = jax.eval_shape(lambda *given: apply(*given, train=False), params, stats, images, keys)
    assert seen == [weights, None]
    assert evaluated.shape == trained.logits.shape == (2, 5)
    assert all((logits.shape, logits.dtype) == ((2, 5), jnp.float32) for _, logits in trained.auxiliary)


def test_without_auxiliary_heads_training_gives_logits():
    model, images = from_linen(GoogLeNet(5, auxiliary=False, width=0.125, dropout=0.0)), jnp.zeros((1, 64, 64, 3))
    params, stats = jax.eval_shape(model.init, jax.random.key(0), images)
    logits, _ = jax.eval_shape(lambda *given: model.apply(*given, images, train=True, keys=None), params, stats)
    assert logits.shape == (1, 5)


def test_evaluation_does_not_need_the_auxiliary_heads():
    """So that a network can be given away without them."""
    model, images = from_linen(GoogLeNet(5, width=0.125)), jnp.zeros((1, 64, 64, 3))
    params, stats = jax.eval_shape(model.init, jax.random.key(0), images)
    kept = {name: layer for name, layer in params.items() if not name.startswith("aux")}
    assert len(kept) == len(params) - 2
    jax.eval_shape(lambda *given: model.apply(*given, images, train=False, keys=None), kept, stats)


def test_dropout_belongs_to_the_example_in_an_auxiliary_head():
    style = Style(False, nn.initializers.lecun_uniform(), 0.2, 0.125, "float32", ())
    head = AuxiliaryHead(5, 0.7, style)
    x = np.random.RandomState(0).standard_normal((4, 4, 4, 8)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 4)
    variables = jax.jit(lambda key: head.init(key, x, train=False, keys=None))(jax.random.key(0))
    apply = jax.jit(lambda x, keys: head.apply(variables, x, train=True, keys=keys))
    whole, part = apply(x, keys), apply(x[2:], keys[2:])
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)
    assert np.abs(apply(x, keys[::-1]) - whole).max() > 1e-3


@pytest.mark.parametrize(
    ("module", "side", "message"),
    [
        (InceptionV3(5, width=0.125), 74, "images of 74x74 are too small for Inception v3: wanted 75x75 or larger"),
        (GoogLeNet(5, width=0.125), 16, "the images are too small for this network"),
        (GoogLeNet(5, norm=True, width=0.125), 8, "the images are too small for this network"),
    ],
)
def test_images_too_small_are_refused(module, side, message):
    with pytest.raises(InputError, match=message):
        shapes(module, (side, side, 3))
