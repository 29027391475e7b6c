"""Bucket reducers: how one message is summed over mesh axes."""

import math
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm.algorithms.factor import Axis, digit_of, groups_of, require_apart, summed_over
from jaxnet.comm.collective import Collective, Kind, axes_size
from jaxnet.comm.dtypes import require_array, require_divides
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Plan, PyTree, Reducer, stateless
from jaxnet.comm.vma import require_varying, same_along


class AllReduce(Protocol):
    """What makes a bucket reducer over mesh axes: `all_reduce`, or another transport's."""

    def __call__(self, *axes: str) -> Reducer: ...


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
