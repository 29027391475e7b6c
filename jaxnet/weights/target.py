"""What a conversion must know of a Flax model: its variables, its classifiers, and the maps that it flattens.

PyTorch flattens a feature map in the order C, H, W, and Flax in the order H, W, C. So the rows of a dense kernel after
a flattened map must be reordered, and the sizes of the map must be known.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict
from jax.extend.core import Jaxpr, Literal, Var

from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.weights.names import is_auxiliary

# Primitives between a flattened map and a dense layer that do not move elements.
_IN_PLACE = frozenset(("convert_element_type", "copy"))

FlattenedMap = tuple[int, int, int]
Forward: TypeAlias = Callable[[Any, Any, bool], Any]


class Target(NamedTuple):
    """The variables of a model that a conversion fills.

    Attributes:
        shapes: the shape of every variable, by flat name: 'params/conv1/kernel'.
        heads: variables whose shape depends on the number of classes.
        maps: (height, width, channels) of the flattened map that a dense kernel multiplies, by the kernel's name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    heads: frozenset[str]
    maps: Mapping[str, FlattenedMap]


def target_of(build: Callable[[int], nn.Module], classes: int, image: tuple[int, ...]) -> Target:
    """Describe the model `build(classes)` for images of this shape, from abstract shapes alone."""
    images = jax.ShapeDtypeStruct((1, *image), "float32")
    module = build(classes)
    variables = _variables(module, images)
    shapes, others = (
        {name: leaf.shape for name, leaf in flatten_dict(tree, sep="/").items()}
        for tree in (variables, _variables(build(classes + 1), images))
    )
    heads = frozenset(name for name, shape in shapes.items() if others[name] != shape)

    def forward(variables: Any, images: jax.Array, train: bool) -> Any:
        if not train:
            return module.apply(variables, images, train=False)
        keys = jax.random.split(jax.random.key(0), images.shape[0])
        return module.apply(variables, images, train=True, keys=keys, mutable=[*variables])

    return Target(shapes, heads, flattened_maps(forward, variables, images))


def _variables(module: nn.Module, images: jax.ShapeDtypeStruct) -> Any:
    return jax.eval_shape(lambda images: module.init(jax.random.key(0), images, train=False), images)


def flattened_maps(forward: Forward, variables: Any, images: Any) -> dict[str, FlattenedMap]:
    """Return (height, width, channels) of the flattened map for each dense kernel that multiplies one.

    Found in the jaxpr of the forward pass: a reshape of [batch, H, W, C] to [batch, H W C] that leads to a product with
    the kernel. A model with auxiliary heads is traced in training too.

    Args:
        forward: called with `variables`, `images`, and whether it trains.
        variables: their shapes, as nested dicts.
        images: their shapes.

    >>> from jaxnet.models import CNN
    >>> images = jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")
    >>> module = CNN(num_classes=10, widths=(4,), hidden=16)
    >>> forward = lambda variables, images, train: module.apply(variables, images, train=train)
    >>> flattened_maps(forward, _variables(module, images), images)
    {'params/dense_0/kernel': (4, 4, 4)}
    """
    names = list(named_leaves(variables))  # in the order of the jaxpr's inputs
    maps: dict[str, FlattenedMap] = {}
    for train in (False, True) if any(map(is_auxiliary, names)) else (False,):
        jaxpr = jax.make_jaxpr(forward, static_argnums=2)(variables, images, train).jaxpr
        maps.update(_products(jaxpr, dict(zip(jaxpr.invars, names, strict=False))))
    return maps


def _products(jaxpr: Jaxpr, names: dict[Var, str]) -> Iterator[tuple[str, FlattenedMap]]:
    """Yield each kernel that multiplies a flattened map; `names` says which inputs are variables."""
    maps: dict[Var, FlattenedMap] = {}
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
