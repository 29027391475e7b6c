"""Norms of layers, also where each device holds a part of every layer; and the two updates that need them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnet.comm import Collective
from jaxnet.comm.collective import axes_size
from jaxnet.comm.reducer import AxisSizes
from jaxnet.comm.vma import varying_axes

PyTree = Any


class Parts(NamedTuple):
    """That an optimizer sees parts of the parameters, one a device; of some, perhaps, the whole.

    Attributes:
        shapes: of the whole parameters.
        axes: the mesh axes over which the parts are spread, bound where the optimizer runs.
    """

    shapes: PyTree
    axes: tuple[str, ...]


_NO_KERNELS = ("bias", "scale", "cls_token", "pos_embed")


def decayed(params: PyTree) -> PyTree:
    """Which leaves weight decay and rates by layer act on: kernels.

    Not BatchNorm's scale and bias, nor other biases, of whatever shape, nor a ViT's class token and positions.

    >>> import jax.numpy as jnp
    >>> decayed({"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3), "query": {"bias": jnp.zeros((2, 3))}})
    {'bias': False, 'kernel': True, 'query': {'bias': False}}
    """

    def is_kernel(path: tuple[Any, ...], leaf: Any) -> bool:
        return leaf.ndim > 1 and jax.tree_util.keystr(path[-1:], simple=True) not in _NO_KERNELS

    return jax.tree.map_with_path(is_kernel, params)


def clipped(limit: float, parts: Parts | None = None) -> optax.GradientTransformation:
    """Scale the gradient down to the global norm `limit` if it is larger. In parts: one float travels."""

    def update_fn(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        del params
        norm = jnp.sqrt(_over_devices(_squares(updates, parts).sum(), parts))
        scale = jnp.where(norm > limit, limit / norm, 1.0)
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def layer_rates(coefficient: float, weight_decay: float, parts: Parts | None = None) -> optax.GradientTransformation:
    """LARS: scale each layer's gradient to its weights (You, Gitman and Ginsburg, 2017).

    Weights w with the gradient g get `r (g + weight_decay w)`, `r = coefficient |w| / (|g| + weight_decay |w|)`, or
    1 where that is 0 or undefined. What is not `decayed` keeps g, without decay, as is usual. In parts: two
    floats a layer travel, in one message.

    With the coefficient 1 and no decay it is LAMB's, of updates that Adam has made and decay has been added to.
    """

    def update_fn(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        if params is None:
            raise ValueError("LARS needs the parameters: optimizer.update(grads, state, params)")
        squares = jnp.stack([_squares(params, parts), _squares(updates, parts)])
        weights, grads = jnp.sqrt(_over_devices(squares, parts))
        bound = grads + weight_decay * weights
        rates = jnp.where((weights > 0) & (bound > 0), coefficient * weights / jnp.where(bound > 0, bound, 1.0), 1.0)
        leaves, tree = jax.tree.flatten(updates)
        kernels = jax.tree.leaves(decayed(params if parts is None else parts.shapes))
        scaled = [
            rate.astype(g.dtype) * (g + weight_decay * w) if kernel else g
            for g, w, rate, kernel in zip(leaves, jax.tree.leaves(params), rates, kernels, strict=True)
        ]
        return jax.tree.unflatten(tree, scaled), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def _squares(tree: PyTree, parts: Parts | None) -> jax.Array:
    """Sum of squares of what this device adds of each leaf, float32 [leaves]."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        square = jnp.square(leaf.astype(jnp.float32)).sum()
        if parts is None or varying_axes(leaf).issuperset(parts.axes):
            return square
        # All devices hold the whole leaf: it counts once.
        return jnp.where(lax.axis_index(parts.axes) == 0, square, 0.0)

    return jnp.stack([of_leaf(leaf) for leaf in jax.tree.leaves(tree)])


def _over_devices(squares: jax.Array, parts: Parts | None) -> jax.Array:
    return squares if parts is None else lax.psum(squares, parts.axes)


def norm_plan(clip: bool, by_layer: bool, parts: Parts, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """The messages of `clipped` and of `layer_rates`."""
    devices = axes_size(parts.axes, axis_sizes)
    floats = [1] * clip + [2 * len(jax.tree.leaves(parts.shapes))] * by_layer
    if devices == 1:
        return ()
    return tuple(Collective("all-reduce", parts.axes, devices, count, "float32") for count in floats)
