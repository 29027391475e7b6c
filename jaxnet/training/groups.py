"""Groups of parameters with a learning rate of their own, such as a frozen body and a new head."""

import fnmatch
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxnet.errors import InputError
from jaxnet.training.norms import Parts

PyTree = Any
Groups = tuple[tuple[str, float], ...]


def multipliers(groups: Groups, params: PyTree) -> PyTree:
    """For each parameter, the number by which its learning rate is multiplied; 1 if no pattern matches.

    A pattern is a path such as 'layer1_0/conv1', with all that is below it, and may hold `*` (which crosses '/'),
    `?` and `[...]`. The first that matches counts.

    >>> multipliers((("head", 10.0), ("*", 0.0)), {"body": {"kernel": 0}, "head": {"kernel": 0}})
    {'body': {'kernel': 0.0}, 'head': {'kernel': 10.0}}

    Raises:
        InputError: a pattern matches no parameter, or every parameter is frozen.
    """
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]
    for pattern, _ in groups:
        if not any(_matches(path, pattern) for path in paths):
            raise InputError(f"optimizer.groups: no parameter matches {pattern!r}; there are: {_some(paths)}")
    of_paths = [next((by for pattern, by in groups if _matches(path, pattern)), 1.0) for path in paths]
    if groups and not any(of_paths):
        raise InputError("optimizer.groups: every parameter is frozen, by a multiplier of 0; leave one to train")
    return jax.tree.unflatten(jax.tree.structure(params), of_paths)


def in_groups(
    groups: Groups, make: Callable[[Parts | None], optax.GradientTransformation], parts: Parts | None = None
) -> optax.GradientTransformation:
    """The optimizer of `make` with rates by group.

    What is frozen, by a multiplier of 0, it does not see: no decay, no share in the gradient's norm, no state.
    """
    inner = optax.masked(
        make(parts and moving(groups, parts)), lambda params: jax.tree.map(bool, multipliers(groups, params))
    )

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(_times, multipliers(groups, updates), updates), state

    return optax.GradientTransformation(inner.init, update)


def moving(groups: Groups, parts: Parts) -> Parts:
    """The parts that an optimizer with these groups sees: without those that are frozen."""
    rates = multipliers(groups, parts.shapes)
    seen = jax.tree.map(lambda leaf, by: leaf if by else optax.MaskedNode(), parts.shapes, rates)
    return parts._replace(shapes=seen)


def _times(by: float, update: jax.Array) -> jax.Array:
    # Adding -0.0 leaves every number its bits, -0.0 too; a product would make infinities into NaN.
    return update * by if by else jnp.full_like(update, -0.0)


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")


def _some(paths: list[str], most: int = 8) -> str:
    return ", ".join(paths[:most]) + (f" and {len(paths) - most} more" if len(paths) > most else "")
