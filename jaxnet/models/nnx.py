"""A Flax NNX module as a pure model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from jaxnet.models.model import Model, PyTree, Variables

if TYPE_CHECKING:
    from flax import nnx  # in the functions, since few use it and it is a fifth of the imports of a start


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
