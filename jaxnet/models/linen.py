"""A Flax Linen module as a pure model."""

import inspect

import flax.linen as nn
import jax

from jaxnet.errors import InputError
from jaxnet.models.model import Model, Outputs, PyTree, Variables, split_collections


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
