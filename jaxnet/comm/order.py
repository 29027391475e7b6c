"""In which order gradients become ready, and which of them travel together.

`backward_order` reads the order from the traced program. `merged_by_cost` (MG-WFBP) and `merged_up_to` (Horovod) then
group gradients that follow each other.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import Jaxpr, Literal

from jaxnet.comm.buckets import BucketPlan, require_cap
from jaxnet.comm.cut import traced
from jaxnet.comm.expression import default_text, expressed
from jaxnet.comm.reducer import Plan, PyTree

# ---- Order ----


def backward_order(gradient: Callable[..., PyTree], *shapes: PyTree) -> tuple[int, ...]:
    """Indices of the leaves of `gradient(*shapes)`, first the one whose value is computed first.

    A parameter tree is flattened by name; the traced program has the order of the layers. Leaves that one
    operation produces together are in reversed tree order, PyTorch DDP's guess.

    Args:
        gradient: a function that returns the gradient's pytree, such as `jax.grad(loss)`.
        shapes: its arguments as `jax.ShapeDtypeStruct`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> def loss(p, x): return jnp.tanh(jnp.tanh(x @ p["b"]) @ p["a"]).sum()   # layer b, then layer a
    >>> square, x = jax.ShapeDtypeStruct((3, 3), "float32"), jax.ShapeDtypeStruct((1, 3), "float32")
    >>> backward_order(jax.grad(loss), {"a": square, "b": square}, x)
    (0, 1)
    """
    program = traced(gradient, shapes).jaxpr
    return order_of(program, program.outvars)


def order_of(program: Jaxpr, results: Sequence[Any]) -> tuple[int, ...]:
    """Indices of results of a program as `traced` gives it, first the one that is computed first."""
    made_at = {var: index for index, eqn in enumerate(program.eqns) for var in eqn.outvars}
    # Results that no operation makes are arguments or literals: ready from the start.
    ready = [-1 if isinstance(var, Literal) else made_at.get(var, -1) for var in results]
    return tuple(sorted(range(len(ready)), key=lambda leaf: (ready[leaf], -leaf)))


def depend_on(program: Jaxpr, arguments: Sequence[Any], results: Sequence[Any]) -> tuple[int, ...]:
    """Indices of results that are computed from these arguments, by operations as they stand in the program."""
    found = set(arguments)
    for eqn in program.eqns:
        if any(var in found for var in eqn.invars if not isinstance(var, Literal)):
            found.update(eqn.outvars)
    return tuple(index for index, var in enumerate(results) if not isinstance(var, Literal) and var in found)


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


def plan_in_place(plan: Plan, order: Sequence[int]) -> Plan:
    """The plan of reordered leaves, with the number that each leaf has in its tree."""
    if plan.buckets is None:
        return plan
    shapes, dtypes = (tuple(in_place(each, order)) for each in (plan.buckets.shapes, plan.buckets.dtypes))
    buckets = tuple(
        replace(bucket, pieces=tuple(replace(piece, leaf=order[piece.leaf]) for piece in bucket.pieces))
        for bucket in plan.buckets.buckets
    )
    return replace(plan, buckets=BucketPlan(shapes, dtypes, buckets))


# ---- Groups of gradients ----
#
# An all-reduce of n bytes takes `alpha + beta n`. Merging two saves an alpha; the price is that the gradient that
# is ready first waits for the other. Pure Python, seconds and bytes.


Groups = Sequence[Sequence[int]]


def merge_by_cost(
    ready_seconds: Sequence[float], sizes_bytes: Sequence[int], alpha: float, beta: float
) -> tuple[tuple[int, ...], ...]:
    """The consecutive groups of leaves whose last all-reduce ends first; indices of leaves, in order.

    All-reduces share one link: each starts when its leaves are ready and the one before it is done. Exact, by
    dynamic programming in O(L^2): what follows the first i leaves depends only on when these are done, and earlier
    is never worse. So the best grouping of the first j leaves is the best of some first i, and one group of the rest.
    Among equally early groupings it takes the one with the larger last group.

    The rule in the authors' program merges a gradient into the next one whenever the wait costs less than the alpha
    saved (Shi, Chu and Li, arXiv 1811.11141 and 1912.09268, where it is called optimal). It is not: each wait is
    short, but they add up while a large message could already travel. Ready at 0, 0.9 and 1.8, with alpha = beta = 1
    and 10, 1 and 1 bytes, the rule merges all three and ends at 14.8.

    Args:
        ready_seconds: when backward has produced each leaf.
        sizes_bytes: size of each leaf.
        alpha: seconds that an all-reduce takes whatever its size.
        beta: seconds for each byte of the message.

    >>> merge_by_cost([0, 0.9, 1.8], [10, 1, 1], alpha=1, beta=1)
    ((0,), (1, 2))
    >>> finish_time(((0,), (1, 2)), [0, 0.9, 1.8], [10, 1, 1], alpha=1, beta=1)
    14.0
    """
    if len(ready_seconds) != len(sizes_bytes):
        raise ValueError(f"wanted a time for each of {len(sizes_bytes)} leaves, got {len(ready_seconds)}")
    finish: list[float] = [0.0]
    begins = [0]
    for end in range(1, len(sizes_bytes) + 1):
        best, best_begin, ready, size = float("inf"), 0, 0.0, 0
        for begin in range(end - 1, -1, -1):
            ready, size = max(ready, ready_seconds[begin]), size + sizes_bytes[begin]
            done = max(finish[begin], ready) + (alpha + beta * size)
            if done <= best:
                best, best_begin = done, begin
        finish.append(best)
        begins.append(best_begin)
    return _groups(begins)


def _groups(begins: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The groups, from where the last group of each prefix begins."""
    groups, end = [], len(begins) - 1
    while end:
        groups.append(tuple(range(begins[end], end)))
        end = begins[end]
    return tuple(reversed(groups))


def merge_up_to(most_bytes: int, sizes_bytes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Consecutive groups of whole leaves of at most `most_bytes`; a leaf that is larger goes alone.

    >>> merge_up_to(10, [4, 4, 4, 20, 1])
    ((0, 1), (2,), (3,), (4,))
    """
    require_cap(most_bytes)
    groups: list[tuple[int, ...]] = []
    room = 0
    for leaf, size in enumerate(sizes_bytes):
        if groups and size <= room:
            groups[-1] += (leaf,)
        else:
            groups.append((leaf,))
            room = most_bytes
        room -= size
    return tuple(groups)


def finish_time(
    groups: Groups, ready_seconds: Sequence[float], sizes_bytes: Sequence[int], alpha: float, beta: float
) -> float:
    """When the last all-reduce ends, in seconds. Arguments as for `merge_by_cost`."""
    done = 0.0
    for group in groups:
        ready = max(ready_seconds[leaf] for leaf in group)
        done = max(done, ready) + (alpha + beta * sum(sizes_bytes[leaf] for leaf in group))
    return done


# ---- Groupings, as `grouped` takes them ----


@dataclass(frozen=True)
class Grouping:
    """`grouping(sizes_bytes) -> groups`, which prints as the expression that makes it.

    Attributes:
        choose: gives the groups of leaves of these sizes in bytes, as indices of leaves.
        expression: Python that makes it; `expressed` fills it in.
    """

    choose: Callable[[Sequence[int]], Groups]
    expression: str = ""

    def __call__(self, sizes_bytes: Sequence[int]) -> Groups:
        return self.choose(sizes_bytes)

    def __repr__(self) -> str:
        return self.expression or default_text("Grouping", self.choose)

    def _replace(self, expression: str) -> "Grouping":
        """As that of a NamedTuple, for `expressed`."""
        return replace(self, expression=expression)


@expressed
def merged_up_to(most_bytes: int) -> Grouping:
    """The groups of `merge_up_to`.

    >>> merged_up_to(10)([4, 4, 4, 20, 1])
    ((0, 1), (2,), (3,), (4,))
    """
    return Grouping(lambda sizes: merge_up_to(most_bytes, sizes))


@expressed
def merged_by_cost(
    *, alpha: float, beta: float, seconds_per_byte: float = 0.0, ready_seconds: Sequence[float] | None = None
) -> Grouping:
    """The groups of `merge_by_cost`.

    Args:
        alpha: seconds that an all-reduce takes whatever its size.
        beta: seconds for each byte of the message.
        seconds_per_byte: of backward, for each byte of a leaf; used only without `ready_seconds`.
        ready_seconds: when backward has produced each leaf, as measured.

    >>> merged_by_cost(alpha=1, beta=1, ready_seconds=[0, 0.9, 1.8])([10, 1, 1])
    ((0,), (1, 2))
    """
    if not (alpha >= 0 and beta >= 0 and seconds_per_byte >= 0):
        raise ValueError(
            "merged_by_cost: alpha, beta and seconds_per_byte must be at least 0 seconds; got "
            f"{alpha=}, {beta=}, {seconds_per_byte=}"
        )

    def choose(sizes: Sequence[int]) -> Groups:
        modelled = itertools.accumulate(seconds_per_byte * size for size in sizes)
        return merge_by_cost(list(modelled) if ready_seconds is None else ready_seconds, sizes, alpha, beta)

    return Grouping(choose)
