"""An all-reduce made of permutes, in two halves with room between them, the second the first run backwards."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxnet.comm.algorithms.all_reduce import all_reduce
from jaxnet.comm.algorithms.factor import Axis, digit_of, require_apart, summed_over
from jaxnet.comm.algorithms.hops import Hops, backwards
from jaxnet.comm.algorithms.line import Line, line_of
from jaxnet.comm.collective import Collective
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Plan, PyTree, Reducer
from jaxnet.comm.vma import require_varying

IDENTITY = all_reduce()
"""The inner reducer of a bracket with nothing inside."""

Round = tuple[Hops, int]
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
        back = _planned([(backwards(hops), elements) for hops, elements in reversed(rounds)], line, dtype)
        return Plan((*there, *within.collectives, *back), halves.multiple(line.size, within.multiple))

    return Reducer(init_fn, reduce_fn, plan_fn)


def _planned(rounds: Sequence[Round], line: Line, dtype: str) -> list[Collective]:
    return [collective for hops, elements in rounds for collective in line.plan(elements, dtype, hops)]
