"""Which Flax variable a tensor of a PyTorch module becomes: a rule, not a table.

    features.0.weight              params/features_0/kernel
    layer1.0.downsample.1.weight   params/layer1_0/downsample_1/scale
    layer1.0.bn1.running_var       batch_stats/layer1_0/bn1/var
    blocks.0.attn.qkv.bias         params/blocks_0/attn/qkv/bias

A part that is a number joins the part before it. A weight with one dim is the scale of a normalization, any other is a
kernel. Running statistics are BatchNorm's. Every other name stays.
"""

import re
from typing import Literal

Source = Literal["torchvision", "timm", "safetensors"]

_STATISTICS = {"running_mean": "mean", "running_var": "var"}
_WEIGHTS = {"kernel": "weight", "scale": "weight", **{flax: torch for torch, flax in _STATISTICS.items()}}
# Layers of Inception v3 whose own names end in a number: they are not members of a list.
_OWN_NUMBER = re.compile(r"branch\d+x\d+\w*")
# timm's VGG has convolutions for a classifier, under other names.
_TIMM = {"pre_logits.fc1": "classifier.0", "pre_logits.fc2": "classifier.3", "head.fc": "classifier.6"}
# Classifiers beside the main one, used in training alone.
_AUXILIARY = re.compile(r"(aux1|aux2|AuxLogits)[./]")


def variable_name(tensor: str, dims: int) -> str | None:
    """Return the variable for a tensor with `dims` dims; None for BatchNorm's count of batches, which nothing uses.

    >>> variable_name("Mixed_5b.branch5x5_1.conv.weight", dims=4)
    'params/Mixed_5b/branch5x5_1/conv/kernel'
    """
    *modules, last = tensor.split(".")
    if last == "num_batches_tracked":
        return None
    path: list[str] = []
    for module in modules:
        if module.isdecimal() and path:
            path[-1] += f"_{module}"
        else:
            path.append(module)
    if last in _STATISTICS:
        return "/".join(("batch_stats", *path, _STATISTICS[last]))
    if last == "weight":
        last = "scale" if dims == 1 else "kernel"
    return "/".join(("params", *path, last))


def tensor_name(variable: str) -> str:
    """Return the tensor that a variable comes from: the inverse of `variable_name`.

    >>> tensor_name("params/layer1_0/downsample_1/scale")
    'layer1.0.downsample.1.weight'
    """
    _, *modules, last = variable.split("/")
    return ".".join((*map(_numbered, modules), _WEIGHTS.get(last, last)))


def _numbered(module: str) -> str:
    return module if _OWN_NUMBER.fullmatch(module) else re.sub(r"_(?=\d+(_|$))", ".", module)


def common_name(tensor: str, source: Source) -> str:
    """Return a tensor's name in torchvision, which differs from that in some libraries.

    >>> common_name("pre_logits.fc1.weight", "timm")
    'classifier.0.weight'
    """
    module, _, last = tensor.rpartition(".")
    return f"{_TIMM[module]}.{last}" if source == "timm" and module in _TIMM else tensor


def is_auxiliary(variable: str) -> bool:
    """Return whether a variable belongs to a classifier for training alone, as in GoogLeNet and Inception v3.

    >>> is_auxiliary("params/aux1/fc1/kernel"), is_auxiliary("params/fc/kernel")
    (True, False)
    """
    return bool(_AUXILIARY.match(variable.partition("/")[2]))
