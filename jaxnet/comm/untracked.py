"""A function under `jax.shard_map` whose loops may begin with a constant, as those of `flax.linen.RNN` do.

There JAX types each value by the mesh axes along which it may differ between devices, and a loop must carry one type.
Zeros are the same everywhere and what the examples make of them is not, so JAX refuses

    carry, _ = jax.lax.scan(lambda carry, x: (carry + x, None), jnp.zeros(4), examples)

and likewise `jax.lax.fori_loop`, and a `jax.lax.cond` of which one branch gives a constant. A function in which nothing
travels needs no such types: its arguments go in as if they were the same everywhere, and its results come out as what
they are. No value changes, and none moves.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Jaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jaxnet.comm.guards import varying_axes
from jaxnet.comm.order import depend_on
from jaxnet.comm.reducer import PyTree, inner_programs, traced_collective


def untracked(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function of arrays, traced without the types that say which values differ between devices.

    Law: values and gradients are those of `function` under `jax.pmap`. A gradient with respect to arguments that differ
    is each device's own, as under `jax.shard_map`.

    Raises:
        TypeError: where it is called, if a collective stands in the function: its gradient would be another.

    >>> from jax.sharding import PartitionSpec as P
    >>> from jaxnet.comm import AXES, make_mesh
    >>> total = lambda x: jax.lax.fori_loop(0, 3, lambda _, carry: carry + x, 0.0)
    >>> mesh = make_mesh(1, jax.devices()[:2])
    >>> mapped = jax.shard_map(lambda x: untracked(total)(x[0])[None], mesh=mesh, in_specs=P(AXES), out_specs=P(AXES))
    >>> mapped(jax.numpy.array([1.0, 2.0])).tolist()
    [3.0, 6.0]
    """

    def same(*arguments: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(arguments)
        differ = [varying_axes(leaf) for leaf in leaves]
        axes = frozenset[str]().union(*differ)
        inside = [_retyped(leaf, off=of) for leaf, of in zip(leaves, differ, strict=True)]
        program, results = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(tree, inside))
        if sent := next(_collectives(program.jaxpr), None):
            raise TypeError(f"untracked takes a function in which nothing travels, and this one has {sent}")
        given = [var for var, of in zip(program.jaxpr.invars, differ, strict=True) if of]
        changed = set(depend_on(program.jaxpr, given, program.jaxpr.outvars))
        values = [
            _retyped(value, on=axes - varying_axes(value)) if index in changed else value
            for index, value in enumerate(jaxpr_as_fun(program)(*inside))
        ]
        return jax.tree.unflatten(jax.tree.structure(results), values)

    return same


def _collectives(program: Jaxpr) -> Iterator[str]:
    """The kind of each collective in a program, loops and all."""
    for equation in program.eqns:
        if traced := traced_collective(equation):
            yield traced[0]
        for inner in inner_programs(equation):
            yield from _collectives(inner)


# ---- Another type for the same value ----
#
# Not `lax.pcast`: its transpose is a sum over the devices.

_retyped_p = Primitive("retyped")


def _retyped(value: jax.Array, off: frozenset[str] = frozenset(), on: frozenset[str] = frozenset()) -> jax.Array:
    """`value`, typed as the same along the axes `off`, and as one that may differ along `on`."""
    if not off | on:
        return value
    result: jax.Array = _retyped_p.bind(value, off=tuple(sorted(off)), on=tuple(sorted(on)))
    return result


@_retyped_p.def_abstract_eval
def _(aval: ShapedArray, *, off: tuple[str, ...], on: tuple[str, ...]) -> ShapedArray:
    kind = aval.manual_axis_type
    return aval.update(manual_axis_type=kind.update(varying=kind.varying - frozenset(off) | frozenset(on)))


_retyped_p.def_impl(lambda value, *, off, on: value)
mlir.register_lowering(_retyped_p, lambda ctx, value, *, off, on: [value])
batching.defvectorized(_retyped_p)


def _transposed(cotangent: jax.Array, value: Any, *, off: tuple[str, ...], on: tuple[str, ...]) -> list[jax.Array]:
    del value
    return [_retyped_p.bind(cotangent, off=on, on=off)]


ad.deflinear2(_retyped_p, _transposed)
