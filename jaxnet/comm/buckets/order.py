"""The order in which the backward pass produces gradients, read from the traced program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from jaxnet.comm.reducer import PyTree


def backward_order(gradient: Callable[..., PyTree], *shapes: PyTree) -> tuple[int, ...]:
    """Indices of the leaves of `gradient(*shapes)`, first the one whose value is computed first.

    A parameter tree is flattened by name, which is not the order of the layers; the traced program is. Leaves
    that one operation produces together keep their reversed tree order, PyTorch DDP's guess.

    Args:
        gradient: a function that returns the gradient's pytree, such as `jax.grad(loss)`.
        shapes: its arguments as `jax.ShapeDtypeStruct`.

    >>> import jax.numpy as jnp
    >>> def loss(p, x): return jnp.tanh(jnp.tanh(x @ p["b"]) @ p["a"]).sum()   # layer b, then layer a
    >>> square, x = jax.ShapeDtypeStruct((3, 3), "float32"), jax.ShapeDtypeStruct((1, 3), "float32")
    >>> backward_order(jax.grad(loss), {"a": square, "b": square}, x)
    (0, 1)
    """
    jaxpr = jax.make_jaxpr(gradient)(*shapes).jaxpr
    made_at = {var: index for index, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
    # Outputs that no operation makes are arguments or literals: ready from the start.
    ready = [-1 if isinstance(var, Literal) else made_at.get(var, -1) for var in jaxpr.outvars]
    return tuple(sorted(range(len(ready)), key=lambda leaf: (ready[leaf], -leaf)))


def reordered(leaves: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """The leaves, `leaves[order[0]]` first; ValueError unless `order` names each of them once.

    >>> reordered("abc", (2, 0, 1))
    ['c', 'a', 'b']
    """
    if sorted(order) != list(range(len(leaves))):
        raise ValueError(f"order must be a permutation of the {len(leaves)} leaves, got {tuple(order)}")
    return [leaves[index] for index in order]


def in_place(ordered: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """The leaves as they were: `in_place(reordered(leaves, order), order)` is `leaves`.

    >>> in_place("cab", (2, 0, 1))
    ['a', 'b', 'c']
    """
    back = sorted(range(len(order)), key=order.__getitem__)
    return [ordered[index] for index in back]
