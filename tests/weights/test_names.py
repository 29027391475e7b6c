"""The rule that makes variables of tensors, and its inverse."""

import jax
import pytest
from flax.traverse_util import flatten_dict

from jaxnet.models.zoo import ZOO
from jaxnet.weights.names import common_name, is_auxiliary, tensor_name, variable_name

EXAMPLES = {
    ("features.0.weight", 4): "params/features_0/kernel",
    ("features.1.weight", 1): "params/features_1/scale",
    ("classifier.6.bias", 1): "params/classifier_6/bias",
    ("layer1.0.conv1.weight", 4): "params/layer1_0/conv1/kernel",
    ("layer4.1.bn2.running_mean", 1): "batch_stats/layer4_1/bn2/mean",
    ("layer2.0.downsample.1.running_var", 1): "batch_stats/layer2_0/downsample_1/var",
    ("inception3a.branch2.0.conv.weight", 4): "params/inception3a/branch2_0/conv/kernel",
    ("Mixed_5b.branch1x1.bn.weight", 1): "params/Mixed_5b/branch1x1/bn/scale",
    ("Mixed_7c.branch3x3dbl_3a.conv.weight", 4): "params/Mixed_7c/branch3x3dbl_3a/conv/kernel",
    ("Mixed_5b.branch5x5_1.bn.bias", 1): "params/Mixed_5b/branch5x5_1/bn/bias",
    ("Conv2d_1a_3x3.conv.weight", 4): "params/Conv2d_1a_3x3/conv/kernel",
    ("blocks.11.attn.qkv.weight", 2): "params/blocks_11/attn/qkv/kernel",
    ("patch_embed.proj.weight", 4): "params/patch_embed/proj/kernel",
    ("cls_token", 3): "params/cls_token",
    ("pos_embed", 3): "params/pos_embed",
    ("fc.weight", 2): "params/fc/kernel",
}


@pytest.mark.parametrize(("tensor", "dims"), EXAMPLES)
def test_both_ways(tensor, dims):
    assert variable_name(tensor, dims) == EXAMPLES[tensor, dims]
    assert tensor_name(EXAMPLES[tensor, dims]) == tensor


def test_the_count_of_batches_is_no_variable():
    assert variable_name("layer1.0.bn1.num_batches_tracked", 0) is None


@pytest.mark.parametrize("name", ["alexnet", "vgg11_bn", "googlenet_bn", "inception_v3", "resnet50", "vit_tiny"])
def test_every_variable_has_a_tensor_that_it_comes_back_from(name):
    entry = ZOO[name]
    module = entry.build(num_classes=entry.classes)
    images = jax.ShapeDtypeStruct((1, *entry.image), "float32")
    variables = jax.eval_shape(lambda images: module.init(jax.random.key(0), images, train=False), images)
    names = {variable: leaf.ndim for variable, leaf in flatten_dict(variables, sep="/").items()}
    tensors = {variable: tensor_name(variable) for variable in names}
    assert len(set(tensors.values())) == len(tensors)
    assert {variable: variable_name(tensors[variable], dims) for variable, dims in names.items()} == {
        n: n for n in names
    }


def test_timm_calls_the_classifier_of_vgg_otherwise():
    assert common_name("head.fc.bias", "timm") == "classifier.6.bias"
    assert common_name("head.fc.bias", "torchvision") == "head.fc.bias"
    assert common_name("features.0.weight", "timm") == "features.0.weight"


def test_auxiliary_heads():
    auxiliary = ["params/aux2/fc1/kernel", "batch_stats/AuxLogits/conv0/bn/mean"]
    assert all(map(is_auxiliary, auxiliary))
    assert not any(map(is_auxiliary, ["params/fc/kernel", "params/aux3/fc/kernel", "params/body/aux1/kernel"]))
