"""From the tensors of a PyTorch module to the variables of the same network in Flax, with an account of both sides."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from typing import Literal as OneOf

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.extend.core import Jaxpr, Literal, Var

from jaxnet.errors import InputError

# ---- Which variable a tensor of a PyTorch module is: a rule, not a table ------------------------------
#
#     features.0.weight              params/features_0/kernel
#     layer1.0.downsample.1.weight   params/layer1_0/downsample_1/scale
#     layer1.0.bn1.running_var       batch_stats/layer1_0/bn1/var
#     blocks.0.attn.qkv.bias         params/blocks_0/attn/qkv/bias
#
# A part that is a number joins the part before it; a weight is the scale of a normalization if it has one dim, and
# else a kernel; running statistics are BatchNorm's. Any other name stays.


Source = OneOf["torchvision", "timm", "safetensors"]

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


# ---- How images are normalized for weights from elsewhere: told at the import, and kept in its file ---


Numbers = tuple[float, ...]

HALVES = ("googlenet_bn", "inception_v3")
"""Networks whose weights torchvision has from TensorFlow: they take pixels with a mean and a deviation of 0.5."""


def checked_pixels(mean: Any, std: Any, channels: int, where: str) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation, or InputError unless each is one number or one a channel, of pixels of 0 to 1.

    >>> checked_pixels((0.5,), [0.2, 0.2, 0.3], 3, "a file")
    ((0.5,), (0.2, 0.2, 0.3))
    >>> checked_pixels((0.5,), [0.0], 3, "a file")
    Traceback (most recent call last):
    jaxnet.errors.InputError: a file: std is [0.0]: wanted one number above 0, or one for each of 3 channels
    """
    means = _checked(mean, channels, lambda value: 0 <= value <= 1, f"{where}: mean", "of 0 to 1")
    return means, _checked(std, channels, lambda value: 0 < value < math.inf, f"{where}: std", "above 0")


def _checked(given: Any, channels: int, is_right: Callable[[float], bool], what: str, bound: str) -> Numbers:
    values = tuple(given) if isinstance(given, list | tuple) else ()
    if len(values) not in (1, channels) or not all(type(value) in (int, float) and is_right(value) for value in values):
        raise InputError(f"{what} is {given!r:.60}: wanted one number {bound}, or one for each of {channels} channels")
    return values


# ---- What an importer has to know of a Flax model: its variables, its classifiers, and the maps that it flattens


# Primitives between a flattened map and a dense layer that leave each element in its place.
_IN_PLACE = frozenset(("convert_element_type", "copy"))

Map = tuple[int, int, int]


class Target(NamedTuple):
    """A model as a place for weights.

    Attributes:
        shapes: of every variable, by flat name: 'params/conv1/kernel'.
        heads: variables whose shape depends on the number of classes.
        maps: for a dense kernel that multiplies a flattened map: the map's height, width and channels.
    """

    shapes: Mapping[str, tuple[int, ...]]
    heads: frozenset[str]
    maps: Mapping[str, Map]


def target_of(build: Callable[[int], nn.Module], classes: int, image: tuple[int, ...]) -> Target:
    """The model `build(classes)` for images of this shape; nothing is computed."""
    images = jax.ShapeDtypeStruct((1, *image), "float32")
    module = build(classes)
    variables = _variables(module, images)
    shapes, others = (
        {name: leaf.shape for name, leaf in flatten_dict(tree, sep="/").items()}
        for tree in (variables, _variables(build(classes + 1), images))
    )
    heads = frozenset(name for name, shape in shapes.items() if others[name] != shape)
    return Target(shapes, heads, flattened_maps(module, variables, images))


def _variables(module: nn.Module, images: jax.ShapeDtypeStruct) -> Any:
    return jax.eval_shape(lambda images: module.init(jax.random.key(0), images, train=False), images)


def flattened_maps(module: nn.Module, variables: Any, images: jax.ShapeDtypeStruct) -> dict[str, Map]:
    """For each dense kernel that multiplies a flattened map, that map's height, width and channels.

    Read off the forward pass, in which a reshape of [batch, H, W, C] to [batch, H W C] leads to a product with the
    kernel; also as it is trained, if there are auxiliary heads.

    >>> from jaxnet.models import CNN
    >>> images = jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")
    >>> module = CNN(num_classes=10, widths=(4,), hidden=16)
    >>> flattened_maps(module, _variables(module, images), images)
    {'params/dense_0/kernel': (4, 4, 4)}
    """

    def evaluated(variables: Any, images: jax.Array) -> Any:
        return module.apply(variables, images, train=False)

    def trained(variables: Any, images: jax.Array) -> Any:
        keys = jax.random.split(jax.random.key(0), images.shape[0])
        return module.apply(variables, images, train=True, keys=keys, mutable=[*variables])

    names = list(flatten_dict(variables, sep="/"))
    passes = (evaluated, trained) if any(map(is_auxiliary, names)) else (evaluated,)
    maps: dict[str, Map] = {}
    for forward in passes:
        jaxpr = jax.make_jaxpr(forward)(variables, images).jaxpr
        maps.update(_products(jaxpr, dict(zip(jaxpr.invars, names, strict=False))))
    return maps


def _products(jaxpr: Jaxpr, names: dict[Var, str]) -> Iterator[tuple[str, Map]]:
    """Each kernel that multiplies a flattened map; `names` tells which of the inputs are variables."""
    maps: dict[Var, Map] = {}
    for equation in jaxpr.eqns:
        given: list[Any] = [atom for atom in equation.invars if not isinstance(atom, Literal)]
        primitive = equation.primitive.name
        result: Any = equation.outvars[0]
        if primitive == "reshape" and len(shape := given[0].aval.shape) == 4 and len(result.aval.shape) == 2:
            maps[result] = shape[1:]
        elif primitive in _IN_PLACE and given:
            names.update((result, names[atom]) for atom in given if atom in names)
            maps.update((result, maps[atom]) for atom in given if atom in maps)
        elif primitive == "dot_general" and len(given) == 2 and given[0] in maps and given[1] in names:
            yield names[given[1]], maps[given[0]]


# ---- What a conversion did with every name of the file and of the model -------------------------------


class Misfit(NamedTuple):
    """A tensor of another shape than the variable that it should become; both shapes as PyTorch has them."""

    tensor: str
    got: tuple[int, ...]
    wanted: tuple[int, ...]


class ConversionReport(NamedTuple):
    """Every name on either side, in one of these places.

    Attributes:
        converted: variables that got their values.
        new_head: variables of classifiers, left out because a new head was asked for.
        auxiliary: variables or tensors of auxiliary heads that the other side lacks.
        missing: tensors that the model needs and the file lacks.
        surplus: tensors of the file that the model has no place for.
        misfits: tensors of another shape than the model's.
        other_classes: those of them that another number of classes explains.
    """

    converted: Sequence[str]
    new_head: Sequence[str]
    auxiliary: Sequence[str]
    missing: Sequence[str]
    surplus: Sequence[str]
    misfits: Sequence[Misfit]
    other_classes: Sequence[Misfit]

    @property
    def unmatched(self) -> int:
        """How many names found no counterpart, but for what was left out on purpose."""
        return sum(map(len, (self.missing, self.surplus, self.misfits, self.other_classes)))

    def lines(self) -> Iterator[str]:
        """The report as text, a name a line."""
        yield f"{len(self.converted)} variables converted"
        yield from _listed("left out, because a new head was asked for", self.new_head)
        yield from _listed("left out, auxiliary heads that only one side has", self.auxiliary)
        yield from _listed("missing in the file", self.missing)
        yield from _listed("without a place in the model", self.surplus)
        yield from _listed("of another shape", map(_shapes, self.misfits))
        yield from _listed("of another number of classes", map(_shapes, self.other_classes))


def _listed(title: str, names: Iterable[str]) -> Iterator[str]:
    listed = [f"  {name}" for name in names]
    if listed:
        yield f"{title}: {len(listed)}"
        yield from listed


def _shapes(misfit: Misfit) -> str:
    return f"{misfit.tensor} is {list(misfit.got)}, wanted {list(misfit.wanted)}"


def convert(
    tensors: Mapping[str, np.ndarray], target: Target, *, new_head: bool = False
) -> tuple[dict[str, np.ndarray], ConversionReport]:
    """The variables of `target`, float32, by flat name, from a module's tensors by torchvision's names.

    Convolutions go from [out, in, height, width] to [height, width, in, out], dense layers from [out, in] to
    [in, out], and a dense layer after a flattened map from the order C, H, W of its inputs to H, W, C. What does
    not fit is left out and reported.

    Args:
        tensors: the file's.
        target: the model.
        new_head: leave out the classifiers, whatever their shape.

    Raises:
        InputError: a tensor of the model is not of floating-point numbers, or one of its numbers is not finite.
    """
    named = {
        name: variable for name, tensor in tensors.items() if (variable := variable_name(name, tensor.ndim)) is not None
    }
    found = {variable: name for name, variable in named.items() if variable in target.shapes}
    dropped = target.heads if new_head else frozenset()
    for variable, name in found.items():
        if variable not in dropped:
            _require_weights(name, tensors[name])
    fitting = {
        variable: converted(tensors[name], variable, target)
        for variable, name in found.items()
        if variable not in dropped
    }
    absent = [variable for variable in target.shapes if variable not in found and variable not in dropped]
    surplus = {name: variable for name, variable in named.items() if found.get(variable) != name}
    misfits = [variable for variable, array in fitting.items() if array is None]

    def described(variable: str) -> Misfit:
        wanted = torch_shape(variable, target.shapes[variable])
        return Misfit(found[variable], tensors[found[variable]].shape, wanted)

    variables = {variable: array for variable, array in fitting.items() if array is not None}
    return variables, ConversionReport(
        converted=list(variables),
        new_head=sorted(dropped),
        auxiliary=[name for name in [*absent, *surplus.values()] if is_auxiliary(name)],
        missing=[tensor_name(name) for name in absent if not is_auxiliary(name)],
        surplus=[name for name, variable in surplus.items() if not is_auxiliary(variable)],
        misfits=[described(name) for name in misfits if name not in target.heads],
        other_classes=[described(name) for name in misfits if name in target.heads],
    )


def converted(tensor: np.ndarray, variable: str, target: Target) -> np.ndarray | None:
    """A tensor as that variable of the model, float32; None if its shape does not fit.

    >>> target = Target({"params/fc/kernel": (3, 2)}, frozenset(), {})
    >>> converted(np.arange(6).reshape(2, 3), "params/fc/kernel", target).tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    shape = target.shapes[variable]
    array = _arranged(tensor, variable, len(shape), target.maps.get(variable))
    if array is None or array.shape != shape:
        return None
    return np.ascontiguousarray(array, np.float32)


def _require_weights(name: str, tensor: np.ndarray) -> None:
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise InputError(
            f"{name} is {tensor.dtype}: wanted floating-point numbers, as a network has them before it is quantized"
        )
    if bad := int((~np.isfinite(tensor.astype(np.float32))).sum()):
        raise InputError(f"{name} has {bad} of {tensor.size} numbers that are not finite: take another checkpoint")


def _arranged(tensor: np.ndarray, variable: str, dims: int, flattened: Map | None) -> np.ndarray | None:
    if not variable.endswith("/kernel"):
        return tensor
    if dims == 4 and tensor.ndim == 4:
        return tensor.transpose(2, 3, 1, 0)
    if dims != 2 or tensor.ndim not in (2, 4):
        return None
    # A convolution over the whole map is a dense layer too.
    rows = tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))
    if flattened is not None and rows.shape[1] == math.prod(flattened):
        height, width, channels = flattened
        rows = rows.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(rows.shape)
    return rows.T


def torch_shape(variable: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a variable as PyTorch has it.

    >>> torch_shape("params/conv1/kernel", (7, 7, 3, 64))
    (64, 3, 7, 7)
    """
    if not variable.endswith("/kernel"):
        return shape
    *window, inputs, outputs = shape
    return (outputs, inputs, *window)
