"""The boundary between models and training: a model is a pair of pure functions, init and apply.

`from_linen` and `from_nnx` make such a pair from a Flax module. Training knows nothing else of a network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnet.errors import InputError, users_code
from jaxnet.models.example_key import example_key

if TYPE_CHECKING:
    from flax import nnx  # imported in the functions: few runs use it, and it is a fifth of the import time

PyTree = Any
Inputs = Any  # what a network is called with: an array, a tuple of arguments, or a dict of named ones
Outputs = Any  # such as logits, float32 [batch, classes]; in training also Heads


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
    """`init(key, inputs) -> Variables`. Works under `jax.eval_shape`, which allocates nothing."""

    def __call__(self, key: jax.Array, inputs: Inputs, /) -> Variables: ...


class ApplyFn(Protocol):
    """`apply(params, stats, inputs, train=..., keys=...) -> (outputs, stats)`.

    Args:
        inputs: of a batch, such as images, float [batch, height, width, channels].
        train: whether BatchNorm uses the batch and dropout drops.
        keys: one random key per example, [batch]; None when nothing is random.

    Returns:
        What the network gives, such as logits, float32 [batch, classes], or `Heads` in training if it has auxiliary
        classifiers; and the new stats (unchanged when not training).
    """

    def __call__(
        self, params: PyTree, stats: PyTree, inputs: Inputs, *, train: bool, keys: jax.Array | None
    ) -> tuple[Outputs, PyTree]: ...


class Model(NamedTuple):
    """A pure model: `init` and `apply`. It knows nothing of devices, processes or gradients."""

    init: ModelInitFn
    apply: ApplyFn


def abstract_variables(model: Model, inputs: Inputs) -> Variables:
    """Return the shapes of a model's variables for inputs of these shapes; nothing is computed.

    >>> from jaxnet.models import CNN, from_linen
    >>> model, image = from_linen(CNN(num_classes=10, hidden=16)), jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")
    >>> abstract_variables(model, image).params["dense_1"]["kernel"].shape
    (16, 10)
    """
    variables: Variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs)
    return variables


def guarded(model: Model, name: str) -> Model:
    """The same model, whose mistakes are InputErrors that call it `name`: what it raises, and what it gives.

    It costs something only where it is traced.
    """

    def init_fn(key: jax.Array, inputs: Inputs) -> Variables:
        with users_code(f"the model {name}, initialized with {shapes_text(inputs)},"):
            made = model.init(key, inputs)
        if not isinstance(made, tuple) or len(made) != len(Variables._fields):
            raise InputError(f"the model {name}: init gave a {type(made).__name__}: wanted Variables(params, stats)")
        named = [(leaf_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(made)]
        if odd := next((text for text, leaf in named if not _is_array(leaf)), None):
            raise InputError(f"the model {name}: its variable {odd} is no array: wanted arrays of numbers")
        variables = Variables(*jax.tree.map(jnp.asarray, tuple(made)))
        _check_params(name, variables.params)
        return variables

    def apply_fn(
        params: PyTree, stats: PyTree, inputs: Inputs, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[Outputs, PyTree]:
        called = f"the model {name}, called with {shapes_text(inputs)} {'in training' if train else 'to evaluate'}"
        with users_code(f"{called},"):
            made = model.apply(params, stats, inputs, train=train, keys=keys)
        if not isinstance(made, tuple) or len(made) != 2:
            raise InputError(f"the model {name}: apply gave a {type(made).__name__}: wanted outputs and stats")
        outputs, changed = made
        for leaf in jax.tree.leaves(outputs):
            if not _is_array(leaf):
                raise InputError(f"{called}, gave a {type(leaf).__name__}: wanted arrays, such as logits")
        if train:
            _check_stats(name, stats, changed)
        return outputs, changed

    return Model(init_fn, apply_fn)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def leaf_name(path: Any) -> str:
    """What a leaf of a tree is called, by its path in `jax.tree.leaves_with_path`.

    >>> [leaf_name(path) for path, _ in jax.tree.leaves_with_path({"dense": {"bias": 0, "kernel": 1}})]
    ['dense/bias', 'dense/kernel']
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def shapes_text(tree: PyTree) -> str:
    """Names, dtypes and shapes of the arrays of a tree.

    >>> shapes_text({"image": jax.ShapeDtypeStruct((1, 8, 8, 1), "uint8")})
    'image uint8[1, 8, 8, 1]'
    """
    texts = [
        f"{leaf_name(path)} {leaf.dtype}{list(leaf.shape)}"
        if hasattr(leaf, "shape")
        else f"{leaf_name(path)} {leaf!s:.60}"
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
    return ", ".join(text.strip() for text in texts) or "nothing"


def _check_params(name: str, params: PyTree) -> None:
    """Refuse a model without parameters, or with some that have no gradient."""
    named = jax.tree.leaves_with_path(params)
    if not named:
        raise InputError(f"the model {name} has no parameters, so there is nothing to train")
    for path, leaf in named:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(
                f"the model {name}: its parameter {leaf_name(path)} is {leaf.dtype}{list(leaf.shape)}: wanted "
                "floating-point numbers, which have a gradient; what is not trained belongs in another collection, as "
                "by self.variable"
            )


def _check_stats(name: str, before: PyTree, after: PyTree) -> None:
    """Refuse running averages that a step changes into others, because a program has one form of state."""
    old, new = (
        {
            leaf_name(path): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
            for path, leaf in jax.tree.leaves_with_path(tree)
        }
        for tree in (before, after)
    )
    for path in [*old, *new]:
        if old.get(path) != new.get(path):
            raise InputError(
                f"the model {name}: its variable {path} is {old.get(path, 'not there')} before a step of training and "
                f"{new.get(path, 'not there')} after it: wanted the same"
            )


def split_collections(variables: Mapping[str, PyTree]) -> Variables:
    """Return Flax's variable collections as `Variables`: 'params', and all the others as stats."""
    stats = {name: tree for name, tree in variables.items() if name != "params"}
    return Variables(variables.get("params", {}), stats)


# ---- Flax Linen -----------------------------------------------------------------------------------------


def from_linen(module: nn.Module) -> Model:
    """Return a Linen module as a `Model` with the module's outputs.

    The module is called with the inputs, and is told of training by the argument that it has for it: `train`,
    `training`, `is_training`, `deterministic` or none. What it draws with Flax's `rngs`, as `nn.Dropout` does, belongs
    to the example (`example_key`). A module with an argument `keys` gets one key an example instead.

    Raises:
        InputError: the module has no `__call__`, or one that asks for more.

    >>> from jaxnet.models import CNN
    >>> model = from_linen(CNN(num_classes=10))
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 28, 28, 1), "float32"))
    >>> sorted(shapes.params)
    ['conv_0', 'conv_1', 'dense_0', 'dense_1']
    """
    if not callable(module):
        raise InputError(f"the model {type(module).__name__} has no __call__")
    called = inspect.unwrap(type(module).__call__)
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called):
        what = "async def" if inspect.iscoroutinefunction(called) else "with yield"
        raise InputError(f"the model {type(module).__name__}: its __call__ is written {what}: wanted one that returns")
    told = _how_told(inspect.signature(module).parameters)

    def init_fn(key: jax.Array, inputs: Inputs) -> Variables:
        arguments, named = _arguments(module, inputs, **told.flags(train=False))
        return split_collections(module.init(key, *arguments, **named))

    def apply_fn(
        params: PyTree, stats: PyTree, inputs: Inputs, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[Outputs, PyTree]:
        flags = {**told.flags(train=train), **({"keys": keys} if told.takes_keys else {})}
        arguments, named = _arguments(module, inputs, **flags)
        if train and keys is not None and not told.takes_keys:
            named["rngs"] = _streams(keys)
        changing = list(stats) if train else []
        outputs, changed = module.apply({"params": params, **stats}, *arguments, **named, mutable=changing)
        return outputs, changed if changing else stats

    return Model(init_fn, apply_fn)


_TRAINS, _DOES_NOT = ("train", "training", "is_training"), "deterministic"


class _Told(NamedTuple):
    """By which arguments a module is told what is going on.

    Attributes:
        name: the argument that says whether it trains, or that it does not; None: there is none.
        takes_keys: whether it takes one key an example by itself.
    """

    name: str | None
    takes_keys: bool

    def flags(self, *, train: bool) -> dict[str, bool]:
        return {} if self.name is None else {self.name: train != (self.name == _DOES_NOT)}


def _how_told(parameters: Mapping[str, inspect.Parameter]) -> _Told:
    return _Told(next((name for name in (*_TRAINS, _DOES_NOT) if name in parameters), None), "keys" in parameters)


def _streams(keys: jax.Array) -> dict[str, jax.Array]:
    """Flax's `rngs`: 'dropout', and 'params', from which Flax takes the streams that it was not given."""
    key = example_key(keys)
    return {"dropout": key, "params": jax.random.fold_in(key, 1)}


def _arguments(module: Any, inputs: Inputs, **told: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments that inputs are, and what a module is told besides.

    Raises:
        InputError: the module does not take them.
    """
    arguments: tuple[Any, ...] = () if isinstance(inputs, dict) else inputs if type(inputs) is tuple else (inputs,)
    named = {**(inputs if isinstance(inputs, dict) else {}), **told}
    found = inspect.signature(module)
    try:
        found.bind(*arguments, **named)
    except TypeError as error:
        wanted = ", ".join([*("array" for _ in arguments), *(f"{name}=..." for name in named)])
        raise InputError(
            f"the model {type(module).__name__} has __call__{found}, and is called with ({wanted}): {error}"
        ) from None
    return arguments, named


# ---- Flax NNX -------------------------------------------------------------------------------------------


def from_nnx(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Return a user's NNX module as a `Model`: split once, so that the step sees plain nested dicts.

    `nnx.jit` walks the module graph on every call (40 ms for 430 leaves) and `nnx.State` is slow to flatten
    (8 ms); dicts take 1 ms. The module is called as `module(inputs)` after `train()` or `eval()`.

    What the module draws, as `nnx.Dropout` does, belongs to the example (`example_key`): its random state is set anew
    in each step, from the keys of the step's examples, and is no part of the run's state.

    Args:
        build: makes the module from its random keys, such as `lambda rngs: MyNet(10, rngs=rngs)`.
    """
    from flax import nnx

    graph, params_like, random_like, stats_like = _split(nnx.eval_shape(lambda: build(nnx.Rngs(0))))

    def init_fn(key: jax.Array, inputs: Inputs) -> Variables:
        del inputs
        _, params, _, stats = _split(build(nnx.Rngs(key)))
        return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    def apply_fn(
        params: PyTree, stats: PyTree, inputs: Inputs, *, train: bool, keys: jax.Array | None = None
    ) -> tuple[Outputs, PyTree]:
        key = jax.random.key(0) if keys is None else example_key(keys)  # without keys nothing is drawn
        random = _random_state(random_like, key)
        module = nnx.merge(graph, _filled(params_like, params), random, _filled(stats_like, stats))
        (module.train if train else module.eval)()
        arguments, named = _arguments(module, inputs)
        outputs = module(*arguments, **named)
        return outputs, nnx.to_pure_dict(_split(module)[3]) if train else stats

    return Model(init_fn, apply_fn)


def _random_state(like: nnx.State, key: jax.Array) -> nnx.State:
    """The state of a module's streams of random numbers at the start of a step: a key each, and a count of 0."""
    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(
        tree,
        [
            jax.random.fold_in(key, index) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros_like(leaf)
            for index, leaf in enumerate(leaves)
        ],
    )


def _split(module: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State, nnx.State]:
    from flax import nnx

    nnx.pop(module, nnx.Intermediate)  # what it has sown is for whoever looks at one call
    parts: tuple[nnx.GraphDef, nnx.State, nnx.State, nnx.State] = nnx.split(module, nnx.Param, nnx.RngState, ...)  # type: ignore[assignment]
    return parts


def _filled(like: nnx.State, values: PyTree) -> nnx.State:
    from flax import nnx

    state = jax.tree.map(lambda leaf: leaf, like)
    nnx.replace_by_pure_dict(state, values)
    return state
