"""The boundary between models and training: a model is a pair of pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

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


class InitFn(Protocol):
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

    init: InitFn
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
