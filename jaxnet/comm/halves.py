"""An all-reduce made of permutes, in two halves with room between them, the second the first run backwards."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import require_array, require_divides, require_varying, same_along
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Collective, Kind, Plan, PyTree, Reducer, axes_size, stateless
from jaxnet.comm.topology import (
    Axis,
    Line,
    Permutation,
    digit_of,
    groups_of,
    inverse,
    line_of,
    require_apart,
    summed_over,
)

# ---- Bucket reducers: how one message is summed over mesh axes ----------------------------------------


class AllReduce(Protocol):
    """What makes a bucket reducer over mesh axes: `all_reduce`, or another transport's."""

    def __call__(self, *axes: str) -> Reducer: ...


@expressed
def all_reduce(*axes: str) -> Reducer:
    """Sum over `axes` with the backend's own all-reduce (NCCL; Gloo's ring; the TPU's torus).

    Law: `all_reduce("host", "device") == lax.psum(x, ("host", "device"))`. Bytes sent by each of the n
    devices: `2 (n-1)/n S`; on a ring `T = 2 (n-1) alpha + 2 (n-1)/n S beta`.
    """

    def reduce(message: jax.Array) -> jax.Array:
        require_varying(message, axes, "the message")
        if axes_size(axes, BOUND_AXES) == 1:
            return same_along(message, axes)  # a collective of one device would be a copy (law L4)
        return lax.psum(message, axes)

    def plan(spec: jax.ShapeDtypeStruct, axis_sizes: Mapping[str, int]) -> Plan:
        return Plan(_collectives("all-reduce", axes, spec, axis_sizes))

    return stateless(reduce, plan)


@expressed
def scattered(axis: Axis, inner: Reducer) -> Reducer:
    """Reduce-scatter over `axis`, `inner` on the part of each device, all-gather over `axis`.

    Law: `scattered("device", all_reduce("host"))` equals `all_reduce("host", "device")`. With c devices a
    host and h hosts each device sends `2 (c-1)/c S` inside the host and only `2 (h-1)/h S/c` across.
    Nested once per level it is BlueConnect (Cho et al., MLSys 2019), for levels inside an axis with `factored`;
    with two levels also NCCL's and Horovod's hierarchical all-reduce.

    The message must have a multiple of `size(axis)` elements, which `bucketed` sees to. `inner` must not sum along
    `axis` itself, whose devices hold different parts: that is a ValueError from `plan` and `reduce`.
    """

    def part_of(spec: jax.ShapeDtypeStruct | jax.Array, axis_sizes: AxisSizes) -> jax.ShapeDtypeStruct:
        return part_spec(spec, f"scattered({axis!r})", digit_of(axis, axis_sizes).size)

    def init_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> PyTree:
        return inner.init(part_of(spec, axis_sizes), axis_sizes)

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        (name, size, _), groups = digit_of(axis, BOUND_AXES), groups_of(axis, BOUND_AXES)
        require_varying(message, (name,), "the message")
        plan_fn(message, BOUND_AXES)
        if size == 1:
            total, state = inner.reduce(message, state)
            return summed_over(total, axis), state
        part = lax.psum_scatter(message, name, axis_index_groups=groups or None, tiled=True)
        part, state = inner.reduce(part, state)
        if groups:
            # Along groups of an axis there is no type for what is the same: `factored` says it of the whole axis.
            return lax.all_gather(part, name, axis_index_groups=groups, tiled=True), state
        # 'invarying' tells JAX what the algorithm guarantees: all devices now hold the same bits.
        return lax.all_gather(part, name, tiled=True, to="invarying"), state

    def plan_fn(spec: jax.ShapeDtypeStruct | jax.Array, axis_sizes: AxisSizes) -> Plan:
        (name, size, _), groups = digit_of(axis, axis_sizes), groups_of(axis, axis_sizes)
        within = inner.plan(part_of(spec, axis_sizes), axis_sizes)
        require_apart(f"scattered({axis!r})", axis, within.collectives, axis_sizes)

        def half(kind: Kind) -> tuple[Collective, ...]:
            whole = Collective(kind, (name,), size, math.prod(spec.shape), jnp.dtype(spec.dtype).name, groups)
            return (whole,) if size > 1 else ()

        collectives = (*half("reduce-scatter"), *within.collectives, *half("all-gather"))
        return Plan(collectives, size * within.multiple)

    return Reducer(init_fn, reduce_fn, plan_fn)


@expressed
def cast(dtype: str, inner: Reducer) -> Reducer:
    """Send as `dtype` whatever `inner` sends, and sum in it; the result has the message's own dtype.

    Half the bytes for float16 and bfloat16 (Horovod's fp16 compression, PyTorch's `fp16_compress_hook`). The sum
    is taken in the narrow type too, so it loses bits at every addition and float16 overflows at 65504.
    XLA:CPU sends bfloat16 as float32; the check of the compiled program reports it. Integers and complex numbers
    travel as they are, and where `inner` sends nothing, nothing is rounded. ValueError if `dtype` has no fractions.
    """
    narrow = jnp.dtype(dtype).name
    if not jnp.issubdtype(narrow, jnp.floating):
        raise ValueError(f"cast: wanted a floating-point dtype such as 'bfloat16', got {narrow!r}")

    def narrowed(spec: jax.ShapeDtypeStruct | jax.Array) -> jax.ShapeDtypeStruct:
        require_array(spec, "the message")
        return jax.ShapeDtypeStruct(spec.shape, narrow if jnp.issubdtype(spec.dtype, jnp.floating) else spec.dtype)

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        sent = narrowed(message)
        if not inner.plan(sent, BOUND_AXES).collectives:
            return inner.reduce(message, state)
        total, state = inner.reduce(message.astype(sent.dtype), state)
        return total.astype(message.dtype), state

    return Reducer(
        lambda spec, axis_sizes: inner.init(narrowed(spec), axis_sizes),
        reduce_fn,
        lambda spec, axis_sizes: inner.plan(narrowed(spec), axis_sizes),
    )


def part_spec(spec: jax.ShapeDtypeStruct | jax.Array, reducer: str, size: int) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the part of one of `size` devices; ValueError, which names the reducer, if there is none."""
    require_divides(spec, reducer, size, "the size of the axis")
    return jax.ShapeDtypeStruct((spec.shape[0] // size,), spec.dtype)


def _collectives(
    kind: Kind, axes: tuple[str, ...], spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes
) -> tuple[Collective, ...]:
    """The collective, or none where the axes hold one device: it is then the identity (law L4)."""
    require_array(spec, "the message")
    size = axes_size(axes, axis_sizes)
    if size == 1:
        return ()
    return (Collective(kind, axes, size, math.prod(spec.shape), jnp.dtype(spec.dtype).name),)


IDENTITY = all_reduce()
"""The inner reducer of a bracket with nothing inside."""

Round = tuple[Permutation, int]
"""Who sends to whom at the same time, and how many elements each."""


class Halves(NamedTuple):
    """What `between` needs to know of an algorithm over the devices of a line.

    Attributes:
        first: what `inner` reduces, from this device's message.
        second: the whole sum, the same bits on every device, from what `inner` gave.
        rounds: of the first half, for a line of this size and a message of so many elements.
        share: the shape of what `inner` reduces, from that of the message and the size of the line.
        multiple: the length that a message must divide by, from the size of the line and the multiple of `inner`.
    """

    first: Callable[[jax.Array, Line], jax.Array]
    second: Callable[[jax.Array, Line], jax.Array]
    rounds: Callable[[int, int], Sequence[Round]]
    share: Callable[[jax.ShapeDtypeStruct | jax.Array, int], jax.ShapeDtypeStruct]
    multiple: Callable[[int, int], int]


def between(axis: Axis, halves: Halves, inner: Reducer, piece_bytes: int | None) -> Reducer:
    """The reducer that runs `inner` between the halves; on an axis of one device, `inner` alone."""

    def init_fn(spec: jax.ShapeDtypeStruct, axis_sizes: AxisSizes) -> PyTree:
        return inner.init(halves.share(spec, digit_of(axis, axis_sizes).size), axis_sizes)

    def reduce_fn(message: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        line = line_of(axis, BOUND_AXES, piece_bytes)
        require_varying(message, (line.digit.axis,), "the message")
        plan_fn(message, BOUND_AXES)
        if line.size == 1:
            total, state = inner.reduce(message, state)
        else:
            share, state = inner.reduce(halves.first(message, line), state)
            total = halves.second(share, line)
        return summed_over(total, axis), state

    def plan_fn(spec: jax.ShapeDtypeStruct | jax.Array, axis_sizes: AxisSizes) -> Plan:
        line = line_of(axis, axis_sizes, piece_bytes)
        within = inner.plan(halves.share(spec, line.size), axis_sizes)
        require_apart(f"an all-reduce along {axis!r}", axis, within.collectives, axis_sizes)
        rounds = halves.rounds(line.size, spec.shape[0]) if line.size > 1 else ()
        dtype = jnp.dtype(spec.dtype).name
        there = _planned(rounds, line, dtype)
        back = _planned([(inverse(hops), elements) for hops, elements in reversed(rounds)], line, dtype)
        return Plan((*there, *within.collectives, *back), halves.multiple(line.size, within.multiple))

    return Reducer(init_fn, reduce_fn, plan_fn)


def _planned(rounds: Sequence[Round], line: Line, dtype: str) -> list[Collective]:
    return [collective for hops, elements in rounds for collective in line.plan(elements, dtype, hops)]


# ---- Reduce-scatter and all-gather of one message in stages, one for each level of a hierarchy --------


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
