"""Which values differ between devices: the guard against summing a gradient twice.

Under `jax.shard_map`, differentiating with respect to *replicated* parameters makes JAX insert the sum
itself. A reducer on top multiplies by the number of devices, with no error. So parameters are cast to
`varying` first, and a value that no longer varies over an axis is refused.
"""

from collections.abc import Iterable

import jax
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxnet.comm.dtypes import require_array


def varying_axes(value: jax.Array) -> frozenset[str]:
    """Mesh axes over which `value` may differ between devices, as its type says."""
    return frozenset(jax.typeof(value).manual_axis_type.varying)


def require_varying(value: jax.Array, axes: Iterable[str], name: str) -> None:
    """Raise TypeError if `value` is already the same along one of `axes`: a sum would count it again.

    And if it is not one array. Says nothing of what varies where JAX tracks no types: under `jax.pmap` and
    `jax.shard_map(check_vma=False)`.
    """
    require_array(value, name)
    varying = varying_axes(value)
    summed = [axis for axis in axes if _is_tracked(axis) and axis not in varying]
    if summed:
        raise TypeError(
            f"{name} is already the same on every device of mesh axis {summed[0]!r}: its gradient was summed by "
            "differentiation, and reducing it again would multiply it by the size of the axis. Differentiate with "
            f"respect to jax.lax.pcast(params, {tuple(axes)!r}, to='varying')."
        )


def _is_tracked(axis: str) -> bool:
    return axis in varying_axes(lax.axis_index(axis))


def same_along(value: jax.Array, axes: Iterable[str]) -> jax.Array:
    """`value`, of which the caller knows that all devices along `axes` hold the same bits; moves nothing.

    JAX knows that of the result of a psum, and cannot know it of an algorithm made of permutes. The laws of
    the conformance suite hold whoever says so to his word (L3).
    """
    wanted = varying_axes(value) & frozenset(axes)
    result: jax.Array = _same_along_p.bind(value, axes=tuple(sorted(wanted))) if wanted else value
    return result


_same_along_p = Primitive("same_along")


@_same_along_p.def_abstract_eval
def _(aval: ShapedArray, *, axes: tuple[str, ...]) -> ShapedArray:
    kind = aval.manual_axis_type
    return aval.update(manual_axis_type=kind.update(varying=kind.varying - frozenset(axes)))


_same_along_p.def_impl(lambda value, *, axes: value)
mlir.register_lowering(_same_along_p, lambda ctx, value, *, axes: [value])
batching.defvectorized(_same_along_p)
