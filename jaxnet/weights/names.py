"""Which variable a tensor of a PyTorch module is: a rule, not a table.

    features.0.weight              params/features_0/kernel
    layer1.0.downsample.1.weight   params/layer1_0/downsample_1/scale
    layer1.0.bn1.running_var       batch_stats/layer1_0/bn1/var
    blocks.0.attn.qkv.bias         params/blocks_0/attn/qkv/bias

A part that is a number joins the part before it; a weight is the scale of a normalization if it has one dim, and
else a kernel; running statistics are BatchNorm's. Any other name stays.
"""

import re
from typing import Literal

Source = Literal["torchvision", "timm", "safetensors"]

_STATISTICS = {"running_mean": "mean", "running_var": "var"}
_WEIGHTS = {"kernel": "weight", "scale": "weight", **{flax: torch for torch, flax in _STATISTICS.items()}}
# Inception v3 calls layers so that are no part of a list.
_OWN_NUMBER = re.compile(r"branch\d+x\d+\w*")
# timm writes VGG's classifier as convolutions, with names of its own.
_TIMM = {"pre_logits.fc1": "classifier.0", "pre_logits.fc2": "classifier.3", "head.fc": "classifier.6"}
# Classifiers beside the main one, which serve in training alone.
_AUXILIARY = re.compile(r"(aux1|aux2|AuxLogits)[./]")


def variable_name(tensor: str, dims: int) -> str | None:
    """The variable that a tensor of so many dims is; None for BatchNorm's count of batches, which nothing needs.

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
    """The tensor that a variable comes from: undoes `variable_name`.

    >>> tensor_name("params/layer1_0/downsample_1/scale")
    'layer1.0.downsample.1.weight'
    """
    _, *modules, last = variable.split("/")
    return ".".join((*map(_numbered, modules), _WEIGHTS.get(last, last)))


def _numbered(module: str) -> str:
    return module if _OWN_NUMBER.fullmatch(module) else re.sub(r"_(?=\d+(_|$))", ".", module)


def common_name(tensor: str, source: Source) -> str:
    """A tensor's name in torchvision, where the library has one of its own.

    >>> common_name("pre_logits.fc1.weight", "timm")
    'classifier.0.weight'
    """
    module, _, last = tensor.rpartition(".")
    return f"{_TIMM[module]}.{last}" if source == "timm" and module in _TIMM else tensor


def is_auxiliary(variable: str) -> bool:
    """Whether a variable belongs to a classifier that serves in training alone, as GoogLeNet and Inception v3 have.

    >>> is_auxiliary("params/aux1/fc1/kernel"), is_auxiliary("params/fc/kernel")
    (True, False)
    """
    return bool(_AUXILIARY.match(variable.partition("/")[2]))
