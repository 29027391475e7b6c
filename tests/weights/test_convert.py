"""Converted weights compute what the same network computes in PyTorch's layout; every name is accounted for."""

import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from jax import lax

from jaxnet.errors import InputError
from jaxnet.models import CNN
from jaxnet.models.zoo import ZOO
from jaxnet.weights import Target, convert, target_of, to_tensors
from jaxnet.weights.convert import Misfit, convert_tensor, torch_shape
from jaxnet.weights.files import WeightsMetadata, write_variables
from jaxnet.weights.names import tensor_name

IMAGE = (6, 5, 4)  # height, width and channels differ, so that no two are confused


class Net(nn.Module):
    """A convolution, BatchNorm, a grouped convolution, a flattened map, two dense layers."""

    num_classes: int

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        x = nn.Conv(6, (3, 3), padding=1, name="features_0")(images)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, name="features_1")(x))
        x = nn.Conv(8, (3, 2), padding="VALID", feature_group_count=2, use_bias=False, name="features_3")(x)
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(self.num_classes, name="classifier_2")(nn.relu(nn.Dense(5, name="classifier_0")(x)))


def reference(tensors, images):
    """The same in the layout of PyTorch: images [batch, channels, height, width]."""
    conv = lambda x, kernel, padding, groups: lax.conv_general_dilated(  # noqa: E731
        *(x, kernel, (1, 1), padding), feature_group_count=groups, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    of_channels = lambda name: tensors[name][None, :, None, None]  # noqa: E731
    x = conv(images, tensors["features.0.weight"], ((1, 1), (1, 1)), 1) + of_channels("features.0.bias")
    x = (x - of_channels("features.1.running_mean")) / np.sqrt(of_channels("features.1.running_var") + 1e-5)
    x = nn.relu(x * of_channels("features.1.weight") + of_channels("features.1.bias"))
    x = conv(x, tensors["features.3.weight"], "VALID", 2).reshape(len(images), -1)
    x = nn.relu(x @ tensors["classifier.0.weight"].T + tensors["classifier.0.bias"][None])
    return x @ tensors["classifier.2.weight"].T + tensors["classifier.2.bias"][None]


def tensors_for(target, seed=0):
    """Random tensors in PyTorch's shapes for every variable."""
    draw = np.random.default_rng(seed)
    return {
        tensor_name(name): draw.uniform(0.5, 1.5, torch_shape(name, shape)).astype(np.float32)
        for name, shape in target.shapes.items()
    }


@pytest.fixture(scope="module")
def target():
    return target_of(Net, 3, IMAGE)


def test_the_target_knows_its_classifier_and_the_map_that_it_flattens(target):
    assert target.heads == {"params/classifier_2/kernel", "params/classifier_2/bias"}
    assert target.maps == {"params/classifier_0/kernel": (4, 4, 8)}


def test_a_converted_network_computes_the_same(target):
    tensors = {**tensors_for(target), "features.1.num_batches_tracked": np.array(7)}
    variables, report = convert(tensors, target)
    assert report.unmatched == 0
    assert set(report.converted) == set(variables) == set(target.shapes)
    images = np.random.default_rng(1).normal(size=(2, *IMAGE)).astype(np.float32)
    logits = Net(3).apply(unflatten_dict(variables, sep="/"), images, train=False)
    expected = reference(tensors, images.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())


def test_the_way_back_is_the_inverse(target):
    tensors = tensors_for(target)
    back = to_tensors(convert(tensors, target)[0], target.maps)
    assert back.keys() == tensors.keys()
    jax.tree.map(np.testing.assert_array_equal, back, tensors)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("alexnet", "vgg11_bn", "vit_tiny"))) for name in ZOO],
)
def test_the_way_back_is_the_inverse_for_each_network_of_the_zoo(name):
    """Numbers stand for themselves, so a row that is moved shows."""
    entry = ZOO[name]
    target = target_of(lambda classes: entry.build(num_classes=classes, width=0.0625), 10, entry.image)
    variables = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in target.shapes.items()
    }
    tensors = to_tensors(variables, target.maps)
    again, report = convert(tensors, target)
    assert report.unmatched == 0
    assert again.keys() == variables.keys()
    jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_two_variables_of_one_name_are_refused():
    with pytest.raises(InputError, match=r"both called a\.0\.bias in PyTorch"):
        to_tensors({"params/a_0/bias": np.zeros(2), "params/a/0/bias": np.zeros(2)}, {})


def test_all_become_float32(target):
    tensors = {name: tensor.astype(jnp.bfloat16) for name, tensor in tensors_for(target).items()}
    variables, report = convert(tensors, target)
    assert report.unmatched == 0
    assert {array.dtype.name for array in variables.values()} == {"float32"}
    exact = tensors["classifier.2.weight"].astype(np.float32).T
    np.testing.assert_array_equal(variables["params/classifier_2/kernel"], exact)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensor: tensor.astype(np.int8), r"features.0.weight is int8: wanted floating-point numbers"),
        (lambda tensor: tensor.astype(np.complex64), r"features.0.weight is complex64: wanted"),
        (lambda tensor: np.where(tensor == tensor.max(), np.nan, tensor), r"has 1 of 216 numbers that are not finite"),
        (lambda tensor: np.full_like(tensor, np.inf).astype(jnp.bfloat16), r"has 216 of 216 numbers that are not fin"),
    ],
)
def test_numbers_that_are_no_weights_are_refused(target, change, words):
    tensors = tensors_for(target)
    spoilt = {**tensors, "features.0.weight": change(tensors["features.0.weight"])}
    with pytest.raises(InputError, match=words):
        convert(spoilt, target)


def test_what_a_new_head_replaces_may_hold_anything(target):
    tensors = {**tensors_for(target), "classifier.2.bias": np.full(3, np.nan, np.float32)}
    assert convert(tensors, target, new_head=True)[1].unmatched == 0


def test_a_convolution_over_the_whole_map_is_a_dense_layer(target):
    tensors = tensors_for(target)
    as_conv = {"classifier.0.weight": tensors["classifier.0.weight"].reshape(5, 8, 4, 4)}
    one, two = (convert({**tensors, **given}, target)[0] for given in ({}, as_conv))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_a_classifier_without_rows_does_not_fit(target):
    empty = {"classifier.2.weight": np.zeros((0, 5), np.float32), "classifier.2.bias": np.zeros(0, np.float32)}
    _, report = convert({**tensors_for(target), **empty}, target)
    assert {misfit.tensor for misfit in report.other_classes} == set(empty)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_of_weights_has_the_mode_of_any_other(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_variables(
            tmp_path / "a.safetensors",
            {"w": np.zeros(2, np.float32)},
            WeightsMetadata("cnn", 10, "torchvision", "a.pth", "0" * 64),
        )
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode


def test_every_name_that_does_not_match_is_reported(target):
    tensors = tensors_for(target)
    del tensors["features.0.bias"]
    tensors["features.3.weight"] = np.zeros((8, 3, 3, 3), np.float32)
    tensors |= {"features.3.bias": np.zeros(8, np.float32), "extra": np.zeros(1, np.float32)}
    variables, report = convert(tensors, target)
    assert report.missing == ["features.0.bias"]
    assert report.surplus == ["features.3.bias", "extra"]
    assert report.misfits == [Misfit("features.3.weight", (8, 3, 3, 3), (8, 3, 3, 2))]
    assert report.unmatched == 4
    assert not {"params/features_0/bias", "params/features_3/kernel"} & set(variables)
    text = "\n".join(report.lines())
    assert "features.3.weight is [8, 3, 3, 3], wanted [8, 3, 3, 2]" in text
    assert all(name in text for name in ("features.0.bias", "features.3.bias", "extra"))


def test_two_tensors_for_one_variable_are_not_mistaken_for_one(target):
    tensors = tensors_for(target)
    tensors["features_0.bias"] = tensors["features.0.bias"]
    report = convert(tensors, target)[1]
    assert report.unmatched == 1


def test_another_number_of_classes_is_named_so_and_a_new_head_leaves_it_out(target):
    tensors = tensors_for(target_of(Net, 7, IMAGE))
    report = convert(tensors, target)[1]
    assert {misfit.tensor for misfit in report.other_classes} == {"classifier.2.weight", "classifier.2.bias"}
    assert report.unmatched == 2
    variables, report = convert(tensors, target, new_head=True)
    assert report.unmatched == 0
    assert set(report.new_head) == target.heads
    assert set(variables) == set(target.shapes) - target.heads


def test_a_new_head_is_left_out_also_where_its_shape_would_fit(target):
    assert not target.heads & set(convert(tensors_for(target), target, new_head=True)[0])


def test_auxiliary_heads_of_one_side_alone_are_left_out():
    shapes = {"params/fc/bias": (2,), "params/aux1/fc2/bias": (2,)}
    both = {"fc.bias": np.zeros(2), "aux1.fc2.bias": np.zeros(2)}
    without = {"fc.bias": np.zeros(2)}
    report = convert(without, Target(shapes, frozenset(), {}))[1]
    assert (report.unmatched, report.auxiliary) == (0, ["params/aux1/fc2/bias"])
    report = convert(both, Target({"params/fc/bias": (2,)}, frozenset(), {}))[1]
    assert (report.unmatched, report.auxiliary) == (0, ["params/aux1/fc2/bias"])


def test_a_kernel_of_other_dims_does_not_fit():
    target = Target({"params/fc/kernel": (4, 3), "params/conv/kernel": (1, 1, 4, 3)}, frozenset(), {})
    assert convert_tensor(np.zeros((3, 2, 2)), "params/fc/kernel", target) is None
    assert convert_tensor(np.zeros((3, 4)), "params/conv/kernel", target) is None


def test_maps_are_found_behind_a_cast_and_under_any_name():
    target = target_of(lambda n: CNN(n, widths=(4, 8), hidden=16, dropout=0.5, dtype="bfloat16"), 10, (8, 12, 1))
    assert target.maps == {"params/dense_0/kernel": (2, 3, 8)}


class WithAuxiliary(nn.Module):
    """A head that is there in training only."""

    num_classes: int

    @nn.compact
    def __call__(self, images, *, train, keys=None):
        if train or self.is_initializing():
            nn.Dense(self.num_classes, name="aux1")(images.reshape(len(images), -1))
        return nn.Dense(self.num_classes, name="fc")(images.mean((1, 2)))


def test_maps_of_auxiliary_heads_are_found_too():
    target = target_of(WithAuxiliary, 3, IMAGE)
    assert target.maps == {"params/aux1/kernel": IMAGE}
    assert {name.split("/")[1] for name in target.heads} == {"aux1", "fc"}
