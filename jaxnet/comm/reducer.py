"""The central idea: a reducer is three pure functions, and reducers nest.

A reducer sums over mesh axes, inside `jax.shard_map` or `jax.pmap`. A *bucket* reducer takes one array of
one dim; a *tree* reducer takes a pytree. `bucketed` lifts the first to the second, and strategies read from
the outside in, as the data moves:

    bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
from jax import lax

from jaxnet.comm.buckets.plan import BucketPlan
from jaxnet.comm.collective import Collective

PyTree = Any
AxisSizes = Mapping[str, int]

KiB = 1024
MiB = 1024 * KiB

FIRST_STATE = "The first state is reducer.init(shapes, axis_sizes) of the same reducer, shapes and mesh."


@dataclass(frozen=True)
class Plan:
    """What a reducer will do to values of given shapes on a mesh of given sizes. Python ints, no arrays.

    Attributes:
        collectives: every collective of one reduction, in the order in which they are issued.
        multiple: messages must have a multiple of this many elements.
        buckets: how leaves map to messages; None where none are cut from leaves: of a bucket reducer, and of PowerSGD.
    """

    collectives: tuple[Collective, ...]
    multiple: int = 1
    buckets: BucketPlan | None = None


class InitFn(Protocol):
    """`init(shapes, axis_sizes) -> state`: the state of one device before the first step.

    `shapes` holds `jax.ShapeDtypeStruct` (arrays do too); nothing is computed from values. A state made inside
    `jax.shard_map` is typed as the same on every device; a `lax.scan` there that carries it takes
    `lax.pcast(state, axes, to="varying")`.
    """

    def __call__(self, shapes: PyTree, axis_sizes: AxisSizes, /) -> PyTree: ...


class ReduceFn(Protocol):
    """`reduce(values, state) -> (sums, state)`: every device gets the sum over the axes, and the same bits.

    The type of the state never changes, so a step that carries it compiles once.
    """

    def __call__(self, values: PyTree, state: PyTree, /) -> tuple[PyTree, PyTree]: ...


class PlanFn(Protocol):
    """`plan(shapes, axis_sizes) -> Plan`: what `reduce` will put on the wire for values of these shapes."""

    def __call__(self, shapes: PyTree, axis_sizes: AxisSizes, /) -> Plan: ...


class Reducer(NamedTuple):
    """How values are summed over the mesh. See `InitFn`, `ReduceFn` and `PlanFn` for the contracts.

    `message` is what sums each message of a tree reducer by itself: the state is a tuple of one state a message, in
    the order of the plan's buckets. None for a bucket reducer, and where messages depend on each other.
    """

    init: InitFn
    reduce: ReduceFn
    plan: PlanFn
    message: "Reducer | None" = None


class _BoundAxes(Mapping[str, int]):
    """Sizes of the axes that are bound where `reduce` is traced."""

    def __getitem__(self, axis: str) -> int:
        return lax.axis_size(axis)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("the bound axes can be asked for by name only")

    def __len__(self) -> int:
        raise TypeError("the bound axes can be asked for by name only")


BOUND_AXES: AxisSizes = _BoundAxes()


def stateless(reduce: Callable[[jax.Array], jax.Array], plan: PlanFn) -> Reducer:
    """Lift `reduce(values) -> sums` to a `Reducer` that carries no state."""

    def init_fn(shapes: PyTree, axis_sizes: AxisSizes) -> PyTree:
        del shapes, axis_sizes
        return ()

    def reduce_fn(values: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        return reduce(values), state

    return Reducer(init_fn, reduce_fn, plan)
