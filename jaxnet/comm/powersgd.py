"""PowerSGD: a matrix travels as the two factors of an approximation of low rank.

A gradient matrix of [rows, columns] has `rows * columns` elements, its factors of rank r `r * (rows + columns)`. With
1024 x 1024 and rank 2, a 256th.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxnet.comm.bucketed import bucketed
from jaxnet.comm.expression import expressed
from jaxnet.comm.guards import LOSSY, require_count, require_varying, varying_along, varying_axes, without_derivative
from jaxnet.comm.reducer import BOUND_AXES, AxisSizes, Collective, Plan, PyTree, Reducer, devices_joined

_SAVING = 2  # a leaf travels as factors if they have at most 1/2 of its elements, as in PyTorch's hook


class PowerSGDState(NamedTuple):
    """What one device keeps between steps.

    Attributes:
        residuals: for each matrix, [rows, columns], what the result left out, this device's share of it.
        guesses: for each matrix, [columns, rank], the right factor of the last step, the same on all devices.
        left: state of the reducer of the left factors.
        right: state of the reducer of the right factors.
        rest: state of the reducer of all other leaves.
    """

    residuals: tuple[jax.Array, ...]
    guesses: tuple[jax.Array, ...]
    left: PyTree
    right: PyTree
    rest: PyTree


@expressed
def powersgd(rank: int, inner: Reducer, factors: Reducer) -> Reducer:
    """Sum matrices by one step of subspace iteration, and all other leaves with `inner` (Vogels et al., 2019).

    A leaf with two or more dims is a matrix M of `[prod(all dims but the last), last]`: a convolution's kernel
    [height, width, in, out] has a row for each weight of an output channel. With Q from the step before:
    `P = orthonormal(sum M Q)`, `Q = sum M' P`, result `P Q'`. `factors` takes the sums: all Ps travel as one
    message, then all Qs as another, `4 rank (rows + columns)` bytes a matrix instead of `4 rows columns`. A
    leaf for which that saves less than half goes through `inner`.

    Laws: if the sum has a rank of at most `rank`, the result equals it, up to rounding; results so far plus the
    residuals of all devices are the sum of all gradients so far. The factors of a sum are the sum of the
    factors, so `factors=scattered("device", all_reduce("host"))` gives the same result with fewer bytes across
    hosts. With one device nothing is approximated. A gradient that is not finite makes its matrix's result,
    residual and guess NaN: a loop that skips such a step must also keep the state from before it.

    Args:
        rank: columns of the factors, at least 1. PyTorch's default is 1; 2 to 4 is usual.
        inner: a tree reducer, for biases, scales and small matrices.
        factors: a bucket reducer over the same axes.

    >>> from jaxnet.comm import MiB, all_reduce
    >>> reducer = powersgd(4, bucketed(all_reduce("host"), 25 * MiB), factors=all_reduce("host"))
    >>> kernel, bias = (jax.ShapeDtypeStruct(shape, "float32") for shape in [(3, 3, 64, 128), (128,)])
    >>> [collective.elements for collective in reducer.plan([kernel, bias], {"host": 2}).collectives]
    [2304, 512, 128]
    """
    require_count(rank, "rank")
    together = bucketed(factors, bucket_bytes=None)

    def split(tree: PyTree, axis_sizes: AxisSizes) -> tuple[_Matrices, PyTree]:
        return _split(tree, rank, alone=_devices(together, axis_sizes) == 1)

    def init_fn(shapes: PyTree, axis_sizes: AxisSizes) -> PowerSGDState:
        matrices, rest = split(shapes, axis_sizes)
        return PowerSGDState(
            tuple(jnp.zeros(shape, jnp.float32) for shape in matrices.shapes),
            tuple(_first_guess(index, columns, rank) for index, (_, columns) in enumerate(matrices.shapes)),
            together.init(matrices.left(rank), axis_sizes),
            together.init(matrices.right(rank), axis_sizes),
            inner.init(rest, axis_sizes),
        )

    def reduce_fn(grads: PyTree, state: PowerSGDState) -> tuple[PyTree, PowerSGDState]:
        # 1. Take the matrices out of the tree, and add what earlier steps left out.
        matrices, rest = split(grads, BOUND_AXES)
        _guard(matrices, _axes(together, BOUND_AXES))
        shares = [
            without_derivative(leaf, "powersgd(...)", LOSSY).reshape(shape).astype(jnp.float32) + residual
            for leaf, shape, residual in zip(matrices.leaves, matrices.shapes, state.residuals, strict=True)
        ]
        # 2. Approximate their sum; each device keeps its share less an nth of the result.
        sums, guesses, left, right = _iterate(together, shares, state)
        devices = _devices(together, BOUND_AXES)
        residuals = tuple(share - total / devices for share, total in zip(shares, sums, strict=True))
        # 3. Sum the other leaves, and put the tree together.
        others, rest_state = inner.reduce(rest, state.rest)
        return _join(grads, matrices, sums, others), PowerSGDState(residuals, guesses, left, right, rest_state)

    def plan_fn(shapes: PyTree, axis_sizes: AxisSizes) -> Plan:
        matrices, rest = split(shapes, axis_sizes)
        plans = (
            together.plan(matrices.left(rank), axis_sizes),
            together.plan(matrices.right(rank), axis_sizes),
            inner.plan(rest, axis_sizes),
        )
        return Plan(tuple(collective for plan in plans for collective in plan.collectives))

    return Reducer(init_fn, reduce_fn, plan_fn, by_shape=True)


class _Matrices(NamedTuple):
    """The leaves that travel as factors: their places in the tree, names, values and shapes as matrices."""

    places: tuple[int, ...]
    names: tuple[str, ...]
    leaves: tuple[jax.Array, ...]
    shapes: tuple[tuple[int, int], ...]

    def left(self, rank: int) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct((rows, rank), jnp.float32) for rows, _ in self.shapes]

    def right(self, rank: int) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct((columns, rank), jnp.float32) for _, columns in self.shapes]


def _split(tree: PyTree, rank: int, *, alone: bool) -> tuple[_Matrices, PyTree]:
    """The matrices, and the tree without them: None in their places, so that the others keep their names."""
    named, structure = jax.tree.flatten_with_path(tree)
    chosen = [] if alone else [place for place, (_, leaf) in enumerate(named) if _pays(leaf, rank)]
    rest = [None if place in chosen else leaf for place, (_, leaf) in enumerate(named)]
    matrices = _Matrices(
        tuple(chosen),
        tuple(jax.tree_util.keystr(named[place][0]) for place in chosen),
        tuple(named[place][1] for place in chosen),
        tuple(_matrix_shape(named[place][1]) for place in chosen),
    )
    return matrices, jax.tree.unflatten(structure, rest)


def _join(tree: PyTree, matrices: _Matrices, sums: list[jax.Array], others: PyTree) -> PyTree:
    leaves = jax.tree.leaves(others)
    for place, leaf, total in zip(matrices.places, matrices.leaves, sums, strict=True):
        leaves.insert(place, total.reshape(leaf.shape).astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _pays(leaf: jax.Array, rank: int) -> bool:
    if len(leaf.shape) < 2 or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return False
    rows, columns = _matrix_shape(leaf)
    return 0 < _SAVING * rank * (rows + columns) <= rows * columns


def _matrix_shape(leaf: jax.Array) -> tuple[int, int]:
    *rows, columns = leaf.shape
    return math.prod(rows), columns


def _first_guess(index: int, columns: int, rank: int) -> jax.Array:
    """Random, and the same on all devices: from a fixed key and the matrix's number."""
    return jax.random.normal(jax.random.fold_in(jax.random.key(0), index), (columns, rank), jnp.float32)


def _iterate(
    together: Reducer, shares: list[jax.Array], state: PowerSGDState
) -> tuple[list[jax.Array], tuple[jax.Array, ...], PyTree, PyTree]:
    """One step of subspace iteration on the sum of the shares: its approximation, the next guesses, and states."""
    left, left_state = together.reduce([m @ q for m, q in zip(shares, state.guesses, strict=True)], state.left)
    # QR by Householder reflections: the sum may have a lower rank than asked for, or be zero.
    left = [jnp.linalg.qr(p)[0] for p in left]
    right, right_state = together.reduce([_right(m, p) for m, p in zip(shares, left, strict=True)], state.right)
    sums = [p @ q.T for p, q in zip(left, right, strict=True)]
    guesses = tuple(_typed_like(new, old) for new, old in zip(right, state.guesses, strict=True))
    return sums, guesses, left_state, right_state


def _right(matrix: jax.Array, left: jax.Array) -> jax.Array:
    """`matrix.T @ left`, a column at a time: for the whole product XLA:CPU transposes the matrix.

    That takes 2.8 ms for 1024 x 1024 on a core, and a column 0.2.
    """
    return jnp.stack([column @ matrix for column in left.T], axis=1)


def _typed_like(value: jax.Array, like: jax.Array) -> jax.Array:
    """`value` with the type of `like`: state keeps its type, one per device, so that a loop can carry it."""
    return varying_along(value, varying_axes(like))


def _axes(together: Reducer, axis_sizes: AxisSizes) -> tuple[str, ...]:
    """The axes over which the factors are summed, as their plan says."""
    return tuple(dict.fromkeys(axis for each in _planned(together, axis_sizes) for axis in each.axes))


def _devices(together: Reducer, axis_sizes: AxisSizes) -> int:
    return devices_joined(_planned(together, axis_sizes), axis_sizes)


def _planned(together: Reducer, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    return together.plan([jax.ShapeDtypeStruct((1,), jnp.float32)], axis_sizes).collectives


def _guard(matrices: _Matrices, axes: tuple[str, ...]) -> None:
    """Check the leaves first: multiplied by a guess, whose type varies, an already summed leaf would go unnoticed."""
    for name, leaf in zip(matrices.names, matrices.leaves, strict=True):
        require_varying(leaf, axes, f"leaf {name}")
