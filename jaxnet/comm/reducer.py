"""What a reducer is: three pure functions, `init`, `reduce` and `plan`. Reducers nest.

A reducer sums over mesh axes, inside `jax.shard_map` or `jax.pmap`. A *bucket* reducer takes one array of
one dim; a *tree* reducer takes a pytree. `bucketed` lifts the first to the second. An expression reads from
the outside in, as the data moves:

    bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB)
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxnet.comm.as_html import html_code, html_line, html_table
from jaxnet.comm.buckets import BucketPlan
from jaxnet.comm.expression import default_text
from jaxnet.comm.guards import require_functions

# ---- Collectives, as a plan names them ----


CollectiveKind = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"]
Transport = Literal["xla", "mpi"]


@dataclass(frozen=True)
class Collective:
    """One collective over some mesh axes.

    Attributes:
        kind: the operation, by the name that HLO gives it.
        axes: the mesh axes that it spans.
        size: how many devices take part, the product of the axes' sizes.
        elements: elements of the whole message: the sum of an all-reduce, the input of a reduce-scatter or an
            all-to-all, the output of an all-gather, what one sender of a permute sends.
        dtype: the NumPy name of what travels.
        groups: places along `axes`, counted row by row, that take part together; empty: all of them.
        pairs: (sender, receiver) of a collective-permute, as places along `axes`.
        transport: 'xla': XLA's collectives; 'mpi': calls of an MPI library, whose ranks are then the places.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    size: int
    elements: int
    dtype: str
    groups: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    transport: Transport = "xla"

    @property
    def bytes(self) -> int:
        """Bytes of the whole message (nccl-tests' S)."""
        return self.elements * jnp.dtype(self.dtype).itemsize

    @property
    def wire_bytes(self) -> int:
        """Fewest bytes that each device sends: `2 (n-1)/n S` for all-reduce, `(n-1)/n S` for its halves.

        The bound of Patarasuk and Yuan (2009), reached by rings and by halving-doubling. All-to-all sends
        `(n-1)/n S` too; a sender of a permute, `S`.

        >>> Collective("all-reduce", ("host",), 4, 1000, "float32").wire_bytes
        6000
        """
        if self.kind == "collective-permute":
            return self.bytes
        rounds = 2 if self.kind == "all-reduce" else 1
        return math.ceil(rounds * (self.size - 1) * self.bytes / self.size)


_TRACED: dict[str, CollectiveKind] = {
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


def traced_collective(equation: JaxprEqn) -> tuple[CollectiveKind, tuple[str, ...]] | None:
    """Which collective an equation of a traced program is, and over which axes; None: it is none."""
    kind = _TRACED.get(equation.primitive.name)
    if kind is None:
        return None
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    return kind, axes if isinstance(axes, tuple) else (axes,)


def inner_programs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs that an equation of a traced program runs: of a call, the body of a loop, the branches of a cond."""
    values = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: isinstance(each, ClosedJaxpr | Jaxpr))
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value.jaxpr if isinstance(value, ClosedJaxpr) else value


def axes_size(axes: Iterable[str], axis_sizes: Mapping[str, int]) -> int:
    """Number of devices that share the collective: the product of the sizes of `axes`."""
    return math.prod(axis_size(axis, axis_sizes) for axis in axes)


def devices_joined(collectives: Iterable[Collective], axis_sizes: Mapping[str, int]) -> int:
    """Number of devices that these join: the product of the sizes of their axes, of which MPI's ranks are one.

    >>> device = Collective("reduce-scatter", ("device",), 4, 100, "float32")
    >>> host = Collective("all-reduce", ("host",), 3, 25, "float32", transport="mpi")
    >>> devices_joined([device, host, device], {"host": 1, "device": 4})
    12
    """
    sizes = {axis: axis_size(axis, axis_sizes) for each in collectives for axis in each.axes}
    return math.prod({**sizes, **{each.axes[0]: each.size for each in collectives if each.transport == "mpi"}}.values())


def axis_size(axis: str, axis_sizes: Mapping[str, int]) -> int:
    """The size of one axis; ValueError, which names the axes that there are, if the mesh lacks it.

    >>> axis_size("hosts", {"host": 2, "device": 4})
    Traceback (most recent call last):
    ValueError: the mesh has no axis 'hosts', only 'host', 'device'
    """
    try:
        return axis_sizes[axis]
    except KeyError:
        raise ValueError(f"the mesh has no axis {axis!r}, only {', '.join(map(repr, axis_sizes))}") from None


def wire_bytes_per_axis(
    collectives: Iterable[Collective], shares: Iterable[float] = itertools.repeat(1)
) -> dict[str, int]:
    """Bytes that the busiest device sends in one step, by the axes they travel over (`'host'`, `'host+device'`).

    All devices send as much, except along trees, where a leaf sends once and the root once for each child.

    Args:
        collectives: of one step.
        shares: for each collective, the part of the steps in which it runs.

    >>> wire_bytes_per_axis([Collective("all-gather", ("device",), 2, 100, "float32")])
    {'device': 200}
    >>> from dataclasses import replace
    >>> up = Collective("collective-permute", ("host",), 2, 100, "float32", pairs=((1, 0),))
    >>> down = replace(up, pairs=((0, 1),))
    >>> wire_bytes_per_axis([up, down])
    {'host': 400}
    """
    sent = sent_by_busiest(collectives, shares)
    return {axes: round(sum(count for _, count in messages)) for axes, messages in sent.items()}


def sent_by_busiest(
    collectives: Iterable[Collective], shares: Iterable[float] = itertools.repeat(1)
) -> dict[str, list[tuple[Collective, float]]]:
    """The messages of `wire_bytes_per_axis`, in their order, each with the bytes that the busiest device sends of it.

    Of permutes only some devices send; those in which the busiest one does not are left out.
    """
    over: defaultdict[str, list[tuple[Collective, float]]] = defaultdict(list)
    by_sender: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for collective, share in zip(collectives, shares, strict=False):
        axes, sent = "+".join(collective.axes), share * collective.wire_bytes
        over[axes].append((collective, sent))
        for sender, _ in collective.pairs:
            by_sender[axes][sender] += sent
    busiest = {axes: max(senders, key=senders.__getitem__) for axes, senders in by_sender.items()}
    return {
        axes: [
            each for each in messages if not each[0].pairs or busiest[axes] in {sender for sender, _ in each[0].pairs}
        ]
        for axes, messages in over.items()
    }


# ---- Reducers and their plans ----


PyTree = Any
AxisSizes = Mapping[str, int]

FIRST_STATE = "The first state is reducer.init(shapes, axis_sizes) of the same reducer, shapes and mesh."


@dataclass(frozen=True)
class Plan:
    """What a reducer will do to values of given shapes on a mesh of given sizes. Python ints, no arrays.

    Attributes:
        collectives: every collective of one reduction, in the order in which they are issued.
        multiple: messages must have a multiple of this many elements.
        buckets: how leaves map to messages; None for a bucket reducer, and where messages depend on each other.
    """

    collectives: tuple[Collective, ...]
    multiple: int = 1
    buckets: BucketPlan | None = None

    def _repr_html_(self) -> str:
        alike = itertools.groupby(
            self.collectives, lambda each: (each.kind, "+".join(each.axes), each.dtype, each.bytes)
        )
        rows = ((len(list(group)), *what) for what, group in alike)
        sent = ", ".join(f"{sent:,} over {axes}" for axes, sent in wire_bytes_per_axis(self.collectives).items())
        buckets = "" if self.buckets is None else f"buckets: {len(self.buckets.buckets):,}; "
        return html_table(["", "collective", "over", "dtype", "bytes"], rows) + html_line(
            f"{buckets}collectives: {len(self.collectives):,}; bytes that the busiest device sends: {sent or 'none'}"
        )


class InitFn(Protocol):
    """`init(shapes, axis_sizes) -> state`: the state of one device before the first step.

    `shapes` holds `jax.ShapeDtypeStruct`, or arrays, whose values are not read. A state made inside
    `jax.shard_map` is typed as the same on every device; to carry it through a `lax.scan` there, cast it with
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


class ByMessage(NamedTuple):
    """How a tree reducer sums each of its messages by itself.

    Attributes:
        reduce: the function of the tree reducer of which this is true; of one that `_replace` has given another
            function it is not known.
        reducer: the bucket reducer that sums a message, from the shapes of the leaves of which it holds something.
    """

    reduce: ReduceFn
    reducer: "Callable[[tuple[tuple[int, ...], ...]], Reducer]"


class Reducer(NamedTuple):
    """How values are summed over the mesh. It prints as the expression that makes it.

    Attributes:
        init: makes the state before the first step; see `InitFn`.
        reduce: sums; see `ReduceFn`.
        plan: says what travels; see `PlanFn`.
        by_message: of a tree reducer that sums each message by itself; see `message`. The state is then a tuple of one
            state a message, in the order of the plan's buckets. None for a bucket reducer, and where messages depend on
            each other.
        expression: Python that makes it; `expressed` fills it in.
        by_shape: what travels follows from the leaves' shapes, as in `powersgd`, and not from their sizes alone.
    """

    init: InitFn
    reduce: ReduceFn
    plan: PlanFn
    by_message: ByMessage | None = None
    expression: str = ""
    by_shape: bool = False

    @property
    def message(self) -> "Callable[[tuple[tuple[int, ...], ...]], Reducer] | None":
        """The bucket reducer of a message, from its leaves' shapes; None where messages are not summed one by one."""
        by_message = self.by_message
        return by_message.reducer if by_message and by_message.reduce is self.reduce else None

    def with_same_messages(self, **functions: Any) -> "Reducer":
        """This with other functions, `reduce` among them, that sum each message as it does."""
        by_message = self.message and ByMessage(functions["reduce"], self.message)
        return self._replace(**functions, by_message=by_message)

    def __repr__(self) -> str:
        return self.expression or default_text("Reducer", self.reduce)

    def _repr_html_(self) -> str:
        return html_code(repr(self))


# ---- Writing a reducer ----


def require_reducer(inner: Any, name: str) -> None:
    """Raise TypeError, which names what takes it, unless `inner` has the three functions of a reducer."""
    wanted = f"{name} takes a reducer, such as all_reduce('host', 'device')"
    require_functions(inner, ("init", "reduce", "plan"), wanted, got=f"a {type(inner).__name__}")


class _BoundAxes(Mapping[str, int]):
    """Sizes of the axes that are bound where `reduce` is traced."""

    def __getitem__(self, axis: str) -> int:
        return lax.axis_size(axis)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("JAX gives the size of a bound axis by its name, and no list of the bound axes")

    def __len__(self) -> int:
        raise TypeError("JAX gives the size of a bound axis by its name, and no list of the bound axes")


BOUND_AXES: AxisSizes = _BoundAxes()
"""Stands for `axis_sizes` inside `reduce`."""


def stateless(reduce: Callable[[jax.Array], jax.Array], plan: PlanFn) -> Reducer:
    """Lift `reduce(values) -> sums` to a `Reducer` that carries no state."""

    def init_fn(shapes: PyTree, axis_sizes: AxisSizes) -> PyTree:
        del shapes, axis_sizes
        return ()

    def reduce_fn(values: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        return reduce(values), state

    return Reducer(init_fn, reduce_fn, plan)


# ---- As a link of an optax chain ----


class GradientTransformation(NamedTuple):
    """The pair `(init, update)` that `optax.chain` takes. Defined here so that this package needs only JAX."""

    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def as_gradient_transformation(reducer: Reducer, axis_sizes: AxisSizes) -> GradientTransformation:
    """Average gradients over the mesh as the first link of an `optax.chain`.

    `update` must run where the mesh axes are bound: inside `jax.shard_map` or `jax.pmap`. A reducer with
    state needs that state sharded one per device.

    Args:
        reducer: sums over the mesh.
        axis_sizes: the mesh's `shape`.

    >>> from jaxnet.comm import all_reduce, bucketed
    >>> average = as_gradient_transformation(bucketed(all_reduce("host", "device"), 2**20), {"host": 1, "device": 1})
    >>> # optimizer = optax.chain(average, optax.sgd(0.1))
    """
    axes = tuple(axis_sizes)

    def init_fn(params: PyTree) -> PyTree:
        return reducer.init(params, axis_sizes)

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree | None = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        del params, extra_args
        sums, state = reducer.reduce(updates, state)
        ranks = [each for each in reducer.plan(updates, BOUND_AXES).collectives if each.transport == "mpi"]
        count = axes_size(axes, BOUND_AXES) * devices_joined(ranks, BOUND_AXES)
        return jax.tree.map(lambda total: total / count, sums), state

    return GradientTransformation(init_fn, update_fn)
