"""The networks that the command line knows by name, and how much arithmetic each needs."""

import difflib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxnet.models.alexnet import AlexNet, AlexNet2012
from jaxnet.models.cnn import Cifar10
from jaxnet.models.googlenet import GoogLeNet
from jaxnet.models.inception_v3 import InceptionV3
from jaxnet.models.lstm import LSTM
from jaxnet.models.model import abstract_variables, from_linen
from jaxnet.models.nin import NetworkInNetwork
from jaxnet.models.resnet import (
    cifar_resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet50_d,
    resnet50_v1,
    resnet101,
    resnet152,
)
from jaxnet.models.vgg import VGG
from jaxnet.models.vit import vit_small, vit_tiny


class Entry(NamedTuple):
    """A network of the zoo.

    Attributes:
        build: makes the module: `build(num_classes=..., dtype=..., width=...)`.
        image: (height, width, channels) of the images that its source trains on.
        classes: how many classes its source has.
        parameters: how many parameters its source has, with those classes and images; the tests compare.
        flops: floating-point operations of one example's forward pass, as `count_flops` finds; the tests compare.
        source: where it was first described, and whose definition this one follows.
    """

    build: Callable[..., nn.Module]
    image: tuple[int, int, int]
    classes: int
    parameters: int
    flops: int
    source: str

    def forward(self) -> tuple[Callable[..., Any], tuple[Any, Any, jax.ShapeDtypeStruct]]:
        """Return the evaluated network as a function, and the shapes of what it takes for one example.

        These are its parameters, its running averages and the image.
        """
        model = from_linen(self.build(num_classes=self.classes))
        image = jax.ShapeDtypeStruct((1, *self.image), "float32")
        params, stats = abstract_variables(model, image)
        apply = lambda params, stats, image: model.apply(params, stats, image, train=False, keys=None)  # noqa: E731
        return apply, (params, stats, image)

    def parameter_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape of each array of parameters by its path, in the order of their use."""
        model = from_linen(self.build(num_classes=self.classes))
        paths: list[str] = []

        def init(key: jax.Array, image: jax.Array) -> list[jax.Array]:
            flat = flatten_dict(model.init(key, image).params, sep="/")
            paths.extend(flat)  # here, because a dict that leaves a traced function is sorted by name
            return list(flat.values())

        shapes = jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((1, *self.image), "float32"))
        return dict(zip(paths, shapes, strict=True))


def nearest(name: str) -> str:
    """Return a hint for a name that is not in `ZOO`.

    >>> nearest("resnet500"), nearest("q")
    ("did you mean 'resnet50'?", '`jaxnet models` lists them')
    """
    near = difflib.get_close_matches(name, ZOO, n=1)
    return f"did you mean {near[0]!r}?" if near else "`jaxnet models` lists them"


IMAGENET = (224, 224, 3)
CROP_227 = (227, 227, 3)  # Caffe's crop for AlexNet: its paper says 224, which its sizes contradict
CROP_299 = (299, 299, 3)
CIFAR = (32, 32, 3)
MNIST = (28, 28, 1)

_VGG = "Simonyan and Zisserman, 2015; torchvision"
_GOOGLENET = "Szegedy et al., 2015"
_RESNET = "He et al., 2016; torchvision"
_CIFAR_RESNET = "He et al., 2016, section 4.2"
_DEIT = "Dosovitskiy et al., 2021; DeiT in timm"
_CAFFE_CIFAR = "Caffe's CIFAR-10 example"

ZOO: dict[str, Entry] = {
    "alexnet": Entry(
        AlexNet, IMAGENET, 1000, 61_100_840, 1_428_376_960, "Krizhevsky, 2014 (one weird trick); torchvision"
    ),
    "alexnet_2012": Entry(AlexNet2012, CROP_227, 1000, 60_965_224, 1_448_813_632, "Krizhevsky et al., 2012; Caffe"),
    "caffenet": Entry(
        partial(AlexNet2012, caffe=True), CROP_227, 1000, 60_965_224, 1_448_813_632, "Jia et al., 2014; Caffe"
    ),
    "nin": Entry(NetworkInNetwork, IMAGENET, 1000, 7_595_176, 2_200_377_600, "Lin et al., 2014; Caffe's model zoo"),
    "cifar10_quick": Entry(Cifar10, CIFAR, 10, 145_578, 24_708_352, _CAFFE_CIFAR),
    "cifar10_full": Entry(partial(Cifar10, full=True), CIFAR, 10, 89_578, 24_596_480, _CAFFE_CIFAR),
    "vgg11": Entry(partial(VGG, depth=11), IMAGENET, 1000, 132_863_336, 15_218_180_096, _VGG),
    "vgg13": Entry(partial(VGG, depth=13), IMAGENET, 1000, 133_047_848, 22_616_932_352, _VGG),
    "vgg16": Entry(partial(VGG, depth=16), IMAGENET, 1000, 138_357_544, 30_940_528_640, _VGG),
    "vgg19": Entry(partial(VGG, depth=19), IMAGENET, 1000, 143_667_240, 39_264_124_928, _VGG),
    "vgg11_bn": Entry(partial(VGG, depth=11, norm=True), IMAGENET, 1000, 132_868_840, 15_218_180_096, _VGG),
    "vgg13_bn": Entry(partial(VGG, depth=13, norm=True), IMAGENET, 1000, 133_053_736, 22_616_932_352, _VGG),
    "vgg16_bn": Entry(partial(VGG, depth=16, norm=True), IMAGENET, 1000, 138_365_992, 30_940_528_640, _VGG),
    "vgg19_bn": Entry(partial(VGG, depth=19, norm=True), IMAGENET, 1000, 143_678_248, 39_264_124_928, _VGG),
    "googlenet": Entry(GoogLeNet, IMAGENET, 1000, 13_378_280, 3_165_343_744, f"{_GOOGLENET}; Caffe"),
    "googlenet_bn": Entry(
        partial(GoogLeNet, norm=True), IMAGENET, 1000, 13_004_888, 2_996_752_384, f"{_GOOGLENET}; torchvision"
    ),
    "inception_v3": Entry(InceptionV3, CROP_299, 1000, 27_161_264, 11_426_432_192, "Szegedy et al., 2016; torchvision"),
    "resnet18": Entry(resnet18, IMAGENET, 1000, 11_689_512, 3_628_146_688, _RESNET),
    "resnet34": Entry(resnet34, IMAGENET, 1000, 21_797_672, 7_327_522_816, _RESNET),
    "resnet50": Entry(resnet50, IMAGENET, 1000, 25_557_032, 8_178_368_512, _RESNET),
    "resnet50_v1": Entry(resnet50_v1, IMAGENET, 1000, 25_557_032, 7_715_946_496, "He et al., 2016"),
    "resnet50_d": Entry(resnet50_d, IMAGENET, 1000, 25_576_264, 8_657_649_664, "He et al., 2019; timm"),
    "resnet101": Entry(resnet101, IMAGENET, 1000, 44_549_160, 15_602_810_880, _RESNET),
    "resnet152": Entry(resnet152, IMAGENET, 1000, 60_192_808, 23_027_253_248, _RESNET),
    "cifar_resnet20": Entry(partial(cifar_resnet, 20), CIFAR, 10, 269_722, 81_102_080, _CIFAR_RESNET),
    "cifar_resnet32": Entry(partial(cifar_resnet, 32), CIFAR, 10, 464_154, 137_725_184, _CIFAR_RESNET),
    "cifar_resnet44": Entry(partial(cifar_resnet, 44), CIFAR, 10, 658_586, 194_348_288, _CIFAR_RESNET),
    "cifar_resnet56": Entry(partial(cifar_resnet, 56), CIFAR, 10, 853_018, 250_971_392, _CIFAR_RESNET),
    "cifar_resnet110": Entry(partial(cifar_resnet, 110), CIFAR, 10, 1_727_962, 505_775_360, _CIFAR_RESNET),
    "lstm": Entry(LSTM, MNIST, 10, 81_674, 4_475_392, "Hochreiter and Schmidhuber, 1997; rows of pixels, 128 units"),
    "vit_tiny": Entry(vit_tiny, IMAGENET, 1000, 5_717_416, 2_507_366_400, _DEIT),
    "vit_small": Entry(vit_small, IMAGENET, 1000, 22_050_664, 9_197_764_608, _DEIT),
}


# ---- Floating-point operations -------------------------------------------------------------------------


def count_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the floating-point operations of `function(*arguments)` in its jaxpr; nothing is computed.

    A multiplication and its addition are two operations. Only convolutions and matrix products count, as in published
    figures (which often call such a pair one operation); padding counts like any other element.

    Args:
        function: a function that `jax.make_jaxpr` can trace.
        arguments: arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        ValueError: a convolution or matrix product is in a `while`, which runs an unknown number of times, or in a
            `cond` whose branches differ.

    >>> import jax.numpy as jnp
    >>> count_flops(jnp.dot, jax.ShapeDtypeStruct((5, 3), "float32"), jax.ShapeDtypeStruct((3, 7), "float32"))
    210
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_flops(jaxpr: Jaxpr) -> int:
    return sum(_flops(equation) for equation in jaxpr.eqns)


def _flops(equation: JaxprEqn) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "conv_general_dilated":
        kernel, outputs = _shape(equation.invars[1]), params["dimension_numbers"].rhs_spec[0]
        return 2 * _results(equation) * math.prod(kernel) // kernel[outputs]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = _shape(equation.invars[0])
        return 2 * _results(equation) * math.prod(left[dim] for dim in contracted)
    counts = list(map(_jaxpr_flops, _inner(params)))
    if name == "cond" and len(set(counts)) == 1:
        return counts[0]  # such as the same convolution in the form that each platform takes
    inside = sum(counts)
    if inside and name in ("while", "cond"):
        raise ValueError(f"cannot count the operations in a {name!r}: how often it runs is not known")
    return inside * params["length"] if name == "scan" else inside


def _results(equation: JaxprEqn) -> int:
    return math.prod(_shape(equation.outvars[0]))


def _shape(variable: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.aval.shape
    return shape


def _inner(params: dict[str, Any]) -> list[Jaxpr]:
    """Return the jaxprs that an operation calls."""
    values = jax.tree.leaves(list(params.values()), is_leaf=lambda value: isinstance(value, ClosedJaxpr | Jaxpr))
    found = [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in values]
    return [value for value in found if isinstance(value, Jaxpr)]


def parameter_flops(function: Callable[..., Any], params: Any, *arguments: Any) -> list[int]:
    """How much of `count_flops(function, params, *arguments)` each leaf of `params` is a factor in.

    In a layer's forward pass its kernel is. What no leaf is a factor in, such as attention's own products, is left out.

    >>> import jax.numpy as jnp
    >>> image, kernels = jax.ShapeDtypeStruct((5, 3), "float32"), {"w": jax.ShapeDtypeStruct((3, 7), "float32")}
    >>> parameter_flops(lambda params, image: image @ params["w"], kernels, image)
    [210]
    """
    jaxpr = jax.make_jaxpr(function)(params, *arguments).jaxpr
    found = [0] * len(jax.tree.leaves(params))
    _attribute(jaxpr, dict(zip(jaxpr.invars, range(len(found)), strict=False)), found)
    return found


_SAME_VALUES = (
    *("reshape", "transpose", "convert_element_type", "squeeze", "broadcast_in_dim", "slice"),
    *("copy", "optimization_barrier"),
)


def _attribute(jaxpr: Jaxpr, leaf_of: dict[Any, int], found: list[int], rounds: int = 1) -> list[int | None]:
    """Add up in `found` the operations with a leaf as a factor; returns which leaf each result is, if it is one.

    All of `jaxpr` runs `rounds` times, as the body of a scan.
    """
    for equation in jaxpr.eqns:
        given = [None if isinstance(each, Literal) else leaf_of.get(each) for each in equation.invars]
        leaves = [leaf for leaf in given if leaf is not None]
        results: list[int | None] = []
        if equation.primitive.name in ("conv_general_dilated", "dot_general"):
            for leaf in leaves[:1]:
                found[leaf] += rounds * _flops(equation)
        elif equation.primitive.name in _SAME_VALUES:
            results = given[:1]
        elif equation.primitive.name != "cond" and len(inner := _inner(equation.params)) == 1:
            same = len(inner[0].invars) == len(given)
            own = zip(inner[0].invars, given, strict=True) if same else ()
            again = equation.params["length"] if equation.primitive.name == "scan" else 1
            results = _attribute(inner[0], {var: leaf for var, leaf in own if leaf is not None}, found, rounds * again)
        elif equation.primitive.name == "cond":  # the same product in the form that each platform takes
            branch = _inner(equation.params)[0]
            own = zip(branch.invars, given[1:], strict=True)
            results = _attribute(branch, {var: leaf for var, leaf in own if leaf is not None}, found, rounds)
        leaf_of.update({var: leaf for var, leaf in zip(equation.outvars, results, strict=False) if leaf is not None})
    return [None if isinstance(each, Literal) else leaf_of.get(each) for each in jaxpr.outvars]
