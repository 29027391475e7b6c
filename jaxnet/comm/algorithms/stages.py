"""Reduce-scatter and all-gather of one message in stages, one for each level of a hierarchy."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.collective import Collective, Kind, axes_size
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes
from jaxnet.comm.vma import same_along

Stages = tuple[tuple[str, ...], ...]  # the axes of each stage of a reduce-scatter, in its order


def scatter_message(message: jax.Array, stages: Stages) -> jax.Array:
    """A device's part of the sum of `message`, whose length divides by the number of devices."""
    for axes in stages:
        if several := _several(axes):
            message = lax.psum_scatter(message, several, tiled=True)
    return message


def gather_message(part: jax.Array, stages: Stages) -> jax.Array:
    """The message of which every device holds a part; `stages` are those that scattered it."""
    for axes in reversed(stages):
        # 'invarying' tells JAX what the algorithm guarantees: all devices now hold the same bits.
        if several := _several(axes):
            part = lax.all_gather(part, several, tiled=True, to="invarying")
        part = same_along(part, axes)
    return part


def _several(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those that hold more than one device: a collective of one would be a copy (law L4), and of a vmap an error."""
    return tuple(axis for axis in axes if axes_size((axis,), BOUND_AXES) > 1)


def scatter_plan(message: jax.ShapeDtypeStruct, stages: Stages, axis_sizes: AxisSizes) -> list[Collective]:
    """The collectives of `scatter_message`."""
    return _plan("reduce-scatter", message, stages, axis_sizes)


def gather_plan(message: jax.ShapeDtypeStruct, stages: Stages, axis_sizes: AxisSizes) -> list[Collective]:
    """The collectives of `gather_message` that give out `message`."""
    return _plan("all-gather", message, stages, axis_sizes)[::-1]


def _plan(kind: Kind, message: jax.ShapeDtypeStruct, stages: Stages, axis_sizes: AxisSizes) -> list[Collective]:
    """From the whole message to a part; axes that hold one device are the identity (law L4)."""
    elements, planned = math.prod(message.shape), []
    for axes in stages:
        size = axes_size(axes, axis_sizes)
        if size > 1:
            planned.append(Collective(kind, axes, size, elements, jnp.dtype(message.dtype).name))
        elements //= size
    return planned
