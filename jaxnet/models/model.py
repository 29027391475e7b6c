"""The boundary between models and training: a model is a pair of pure functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import flax.linen as nn
import jax

from jaxnet.errors import InputError

if TYPE_CHECKING:
    from flax import nnx  # in the functions, since few use it and it is a fifth of the imports of a start

PyTree = Any
Outputs = Any  # logits, float32 [batch, classes]; in training also Heads


class Variables(NamedTuple):
    """What a model holds.

    Attributes:
        params: what the optimizer changes.
        stats: what the forward pass changes, such as BatchNorm's running averages.
    """

    params: PyTree
    stats: PyTree


class Heads(NamedTuple):
    """What a network with auxiliary classifiers gives in training, instead of logits.

    Attributes:
        logits: of the classifier that is kept, float32 [batch, classes].
        auxiliary: of each of the others, the weight of its loss and its logits.
    """

    logits: jax.Array
    auxiliary: tuple[tuple[float, jax.Array], ...] = ()


class ModelInitFn(Protocol):
    """`init(key, images) -> Variables`. Works under `jax.eval_shape`: nothing need be allocated."""

    def __call__(self, key: jax.Array, images: jax.Array, /) -> Variables: ...


class ApplyFn(Protocol):
    """`apply(params, stats, images, train=..., keys=...) -> (logits, stats)`.

    Args:
        images: float array [batch, height, width, channels].
        train: whether BatchNorm uses the batch and dropout drops.
        keys: one random key an example, [batch]; None when nothing is random.

    Returns:
        Logits, float32 [batch, classes], or in training `Heads` where the model has auxiliary classifiers; and the new
        stats (unchanged when not training).
    """

    def __call__(
        self, params: PyTree, stats: PyTree, images: jax.Array, *, train: bool, keys: jax.Array | None
    ) -> tuple[Outputs, PyTree]: ...


class Model(NamedTuple):
    """A pure model. Knows nothing of devices, processes or gradients."""

    init: ModelInitFn
    apply: ApplyFn


def abstract_variables(model: Model, image_shape: Sequence[int]) -> Variables:
    """Shapes of what a model holds, for images [height, width, channels]; nothing is computed.

    >>> from jaxnet.models import CNN, from_linen
    >>> abstract_variables(from_linen(CNN(num_classes=10, hidden=16)), (8, 8, 1)).params["dense_1"]["kernel"].shape
    (16, 10)
    """
    image = jax.ShapeDtypeStruct((1, *image_shape), "float32")
    variables: Variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), image)
    return variables


def split_collections(variables: Mapping[str, PyTree]) -> Variables:
    """Flax's variable collections as `Variables`: 'params', and all the others as stats."""
    stats = {name: tree for name, tree in variables.items() if name != "params"}
    return Variables(variables["params"], stats)


# ---- How the networks are to be compiled to compute fast ----------------------------------------------


# Deletes optimization barriers, and with them what `layers.kept_relu` keeps. jaxnet.comm's options disable it too.
_CPU_PASS = "cse_barrier_expander"
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS, _SUMS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", "LIBRARY_FUSION_TYPE_REDUCE"


def network_options(platform: str) -> dict[str, str | bool]:
    """Options for `jax.jit(..., compiler_options=...)` of a program that contains a network.

    On CPUs, XLA hands products of matrices, sums and convolutions to a library (YNNPACK) by default. Its convolutions
    are slower than those that XLA has from Eigen: with these options a training step of ResNet-18 takes 0.76 times as
    long. And what a network keeps for its gradient by a barrier stays kept. Other platforms need none.

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    if platform != "cpu":
        return {}
    return {_LIBRARY: f"{_PRODUCTS},{_SUMS}", "xla_disable_hlo_passes": _CPU_PASS}


def inference_options(platform: str) -> dict[str, str | bool]:
    """Options as those of `network_options`, for a program that computes no gradients.

    The library takes a sum into one operation with the products that lead to it, unless something else wants these too:
    AlexNet's softmax takes three dense layers with it, which for 5 to 8 images costs 690 ms where the whole network
    takes 110. Sums in training are mostly those of BatchNorm, and products are kept for the gradient; there the library
    saves a quarter of the step of ResNet-18.
    """
    options = network_options(platform)
    return {**options, _LIBRARY: _PRODUCTS} if options else options


def once_options(platform: str) -> dict[str, str | int | bool]:
    """Options for `jax.jit(..., compiler_options=...)` of a program that runs once, such as the first state.

    On CPUs LLVM unrolls the loops that draw random numbers, a kernel for each shape: the first state of ResNet-50 takes
    17 s of processor time to compile, and 7.5 with these options, to the same bits and as fast (0.4 s).

    Args:
        platform: 'cpu', 'gpu' or 'tpu', as `jax.default_backend()` names it.
    """
    return {"xla_backend_optimization_level": 1} if platform == "cpu" else {}


# ---- A Flax Linen module as a pure model --------------------------------------------------------------


def from_linen(module: nn.Module) -> Model:
    """`module(images, train=..., keys=...)` as a `Model`; what the module returns, logits or `Heads`, is passed on.

    Raises:
        InputError: the module cannot be called so.

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


# ---- A Flax NNX module as a pure model ----------------------------------------------------------------


def from_nnx(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """A user's NNX module as a `Model`: split once, so that the step sees plain nested dicts.

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
            "to the example; build it without, or write the layer with keys an example as jaxnet.models.layers does"
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
