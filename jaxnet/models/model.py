"""The boundary between models and training: a model is a pair of pure functions, init and apply.

`from_linen` and `from_nnx` make such a pair from a Flax module. Training knows nothing else of a network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import flax.linen as nn
import jax

from jaxnet.errors import InputError

if TYPE_CHECKING:
    from flax import nnx  # imported in the functions: few runs use it, and it is a fifth of the import time

PyTree = Any
Outputs = Any  # logits, float32 [batch, classes]; in training also Heads


class Variables(NamedTuple):
    """The variables of a model.

    Attributes:
        params: changed by the optimizer.
        stats: changed by the forward pass, such as BatchNorm's running averages.
    """

    params: PyTree
    stats: PyTree


class Heads(NamedTuple):
    """The outputs of a network with auxiliary classifiers, in training.

    Attributes:
        logits: those of the main classifier, float32 [batch, classes].
        auxiliary: the weight of the loss and the logits of each auxiliary classifier.
    """

    logits: jax.Array
    auxiliary: tuple[tuple[float, jax.Array], ...] = ()


class ModelInitFn(Protocol):
    """`init(key, images) -> Variables`. Works under `jax.eval_shape`, which allocates nothing."""

    def __call__(self, key: jax.Array, images: jax.Array, /) -> Variables: ...


class ApplyFn(Protocol):
    """`apply(params, stats, images, train=..., keys=...) -> (logits, stats)`.

    Args:
        images: float array [batch, height, width, channels].
        train: whether BatchNorm uses the batch and dropout drops.
        keys: one random key per example, [batch]; None when nothing is random.

    Returns:
        Logits, float32 [batch, classes], or `Heads` in training if the model has auxiliary classifiers; and the new
        stats (unchanged when not training).
    """

    def __call__(
        self, params: PyTree, stats: PyTree, images: jax.Array, *, train: bool, keys: jax.Array | None
    ) -> tuple[Outputs, PyTree]: ...


class Model(NamedTuple):
    """A pure model: `init` and `apply`. It knows nothing of devices, processes or gradients."""

    init: ModelInitFn
    apply: ApplyFn


def abstract_variables(model: Model, image_shape: Sequence[int]) -> Variables:
    """Return the shapes of a model's variables for images [height, width, channels]; nothing is computed.

    >>> from jaxnet.models import CNN, from_linen
    >>> abstract_variables(from_linen(CNN(num_classes=10, hidden=16)), (8, 8, 1)).params["dense_1"]["kernel"].shape
    (16, 10)
    """
    image = jax.ShapeDtypeStruct((1, *image_shape), "float32")
    variables: Variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), image)
    return variables


def split_collections(variables: Mapping[str, PyTree]) -> Variables:
    """Return Flax's variable collections as `Variables`: 'params', and all the others as stats."""
    stats = {name: tree for name, tree in variables.items() if name != "params"}
    return Variables(variables["params"], stats)


# ---- Flax Linen -----------------------------------------------------------------------------------------


def from_linen(module: nn.Module) -> Model:
    """Return `module(images, train=..., keys=...)` as a `Model` with the module's outputs, logits or `Heads`.

    Raises:
        InputError: the module has another signature.

    >>> from jaxnet.models import CNN
    >>> model = from_linen(CNN(num_classes=10))
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 28, 28, 1), "float32"))
    >>> sorted(shapes.params)
    ['conv_0', 'conv_1', 'dense_0', 'dense_1']
    """

    _require_signature(module)

    def init_fn(key: jax.Array, images: jax.Array) -> Variables:
        return split_collections(module.init(key, images, train=False))

    def apply_fn(
        params: PyTree, stats: PyTree, images: jax.Array, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[Outputs, PyTree]:
        variables = {"params": params, **stats}
        changing = list(stats) if train else []
        outputs, changed = module.apply(variables, images, train=train, keys=keys, mutable=changing)
        return outputs, changed if changing else stats

    return Model(init_fn, apply_fn)


def _require_signature(module: nn.Module) -> None:
    name, wanted = type(module).__name__, "wanted __call__(self, images, *, train, keys=None)"
    if not callable(module):
        raise InputError(f"the model {name} has no __call__: {wanted}")
    found = inspect.signature(module)
    try:
        found.bind(None, train=True, keys=None)
    except TypeError as error:
        raise InputError(f"the model {name} has __call__{found}: {wanted} ({error})") from error


# ---- Flax NNX -------------------------------------------------------------------------------------------


def from_nnx(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Return a user's NNX module as a `Model`: split once, so that the step sees plain nested dicts.

    `nnx.jit` walks the module graph on every call (40 ms for 430 leaves) and `nnx.State` is slow to flatten
    (8 ms); dicts take 1 ms. The module is called as `module(images)` after `train()` or `eval()`.

    Args:
        build: makes the module from its random keys, such as `lambda rngs: MyNet(10, rngs=rngs)`.

    Raises:
        ValueError: the module keeps random state (`nnx.Dropout`), which would differ by device.
    """
    from flax import nnx

    graph, params_like, random, stats_like = _split(nnx.eval_shape(lambda: build(nnx.Rngs(0))))
    if jax.tree.leaves(random):
        raise ValueError(
            "the NNX module keeps random state (nnx.Dropout or the like), which would belong to the device and not "
            "to the example; build it without, or give the layer one key per example as jaxnet.models.layers does"
        )

    def init_fn(key: jax.Array, images: jax.Array) -> Variables:
        del images
        _, params, _, stats = _split(build(nnx.Rngs(key)))
        return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    def apply_fn(
        params: PyTree, stats: PyTree, images: jax.Array, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        del keys
        module = nnx.merge(graph, _filled(params_like, params), _filled(stats_like, stats))
        (module.train if train else module.eval)()
        logits = module(images)
        return logits, nnx.to_pure_dict(_split(module)[3]) if train else stats

    return Model(init_fn, apply_fn)


def _split(module: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State, nnx.State]:
    from flax import nnx

    parts: tuple[nnx.GraphDef, nnx.State, nnx.State, nnx.State] = nnx.split(module, nnx.Param, nnx.RngState, ...)  # type: ignore[assignment]
    return parts


def _filled(like: nnx.State, values: PyTree) -> nnx.State:
    from flax import nnx

    state = jax.tree.map(lambda leaf: leaf, like)
    nnx.replace_by_pure_dict(state, values)
    return state
