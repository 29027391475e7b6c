"""What reducers refuse: values of a wrong dtype or shape, gradients that JAX has already summed, and derivatives.

Under `jax.shard_map`, differentiating with respect to *replicated* parameters makes JAX insert the sum
itself. A reducer on top would multiply by the number of devices, with no error. So cast parameters to
`varying` first; reducers refuse a value that no longer varies over an axis that they sum over.
"""

import functools
import inspect
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# ---- Counts, dtypes and shapes ----


def require_count(value: Any, name: str) -> None:
    """Raise ValueError, which names it, unless this is a whole number from 1 on."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}; wanted a whole number from 1 on")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def require_functions(value: Any, names: Sequence[str], wanted: str, got: str) -> None:
    """Raise TypeError, `wanted` and `got`, unless `value` has these; where it is a function, the cure is to call it."""
    if all(hasattr(value, name) for name in names):
        return
    if inspect.isroutine(value):
        got = f"the function {value.__name__}: call it"
    raise TypeError(f"{wanted}, and got {got}")


def require_axes(axes: tuple[str, ...], name: str) -> None:
    """Raise TypeError, which names the reducer, unless these are names of mesh axes, each once."""
    if not all(isinstance(axis, str) for axis in axes) or len(set(axes)) < len(axes):
        raise TypeError(
            f"{name} takes the names of mesh axes, each once, as 'host', 'device', and got "
            f"{', '.join(map(repr, axes))}; a factor of an axis goes to scattered, ring or halving_doubling"
        )


def require_array(value: jax.Array | jax.ShapeDtypeStruct, name: str) -> None:
    """Raise TypeError, which names the value, unless it is one array or its shape; trees are for tree reducers."""
    if not hasattr(value, "dtype"):
        kind = type(value).__name__
        raise TypeError(
            f"{name} is a {kind}, and a bucket reducer takes one array of one dim; a tree is for bucketed(reducer, "
            "bucket_bytes)"
        )


def require_divides(message: jax.Array | jax.ShapeDtypeStruct, reducer: str, count: int, what: str) -> None:
    """Raise ValueError, which names the reducer, unless the message has one dim and divides by `count`, the `what`.

    TypeError if it is not one array.
    """
    require_array(message, "the message")
    if len(message.shape) != 1 or message.shape[0] % count:
        raise ValueError(
            f"{reducer} takes a message of one dim whose length divides by {count}, {what}; got shape "
            f"{tuple(message.shape)}. Wrap it in bucketed(...), which flattens and pads."
        )


def require_floats(message: jax.Array) -> None:
    """Raise TypeError unless a codec can take the message: real floating-point numbers."""
    if not jnp.issubdtype(message.dtype, jnp.floating):
        raise TypeError(f"a codec takes floating-point messages, got {message.dtype}; sum these with all_reduce(...)")


def require_summable(value: jax.Array | jax.ShapeDtypeStruct, name: str) -> None:
    """Raise TypeError, which names the value, if it is bool: some collectives add these up, and others take 'or'."""
    if value.dtype == jnp.bool_:
        raise TypeError(f"{name} is bool, of which there is no sum; count the devices with {name}.astype('int32')")


# ---- Values that differ between devices ----


def varying_axes(value: jax.Array) -> frozenset[str]:
    """Mesh axes over which `value` may differ between devices, as its type says."""
    return frozenset(jax.typeof(value).manual_axis_type.varying)


def require_varying(value: jax.Array, axes: Iterable[str], name: str) -> None:
    """Raise TypeError if `value` is already the same along one of `axes`: a sum would count it again.

    Also if it is not one array. Cannot tell what varies where JAX tracks no types: under `jax.pmap` and
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


def require_sum(result: Any, message: jax.Array, axes: Iterable[str], reducer: str) -> None:
    """Raise TypeError or ValueError, which name the reducer, unless `result` is a total of the message, and a state."""
    if not isinstance(result, tuple) or len(result) != 2:
        got = "one array" if hasattr(result, "dtype") else f"a {type(result).__name__}"
        raise TypeError(f"{reducer}: reduce gave {got}; wanted two values, the total and the state")
    total = result[0]
    require_array(total, f"{reducer}: the total")
    if (total.shape, total.dtype) != (message.shape, message.dtype):
        got, wanted = (f"{each.dtype}{list(each.shape)}" for each in (total, message))
        raise ValueError(f"{reducer}: the total is {got} for a message of {wanted}; wanted the same shape and dtype")
    if differs := [axis for axis in axes if axis in varying_axes(total)]:
        raise TypeError(
            f"{reducer}: the total differs between devices along mesh axis {differs[0]!r}, over which its plan sums; "
            "is that sum missing? If all devices compute it from the same values, tell JAX: gather these with "
            "jax.lax.all_gather(..., to='invarying'), or end with comm.same_along(total, axes)"
        )


def _is_tracked(axis: str) -> bool:
    return axis in varying_axes(lax.axis_index(axis))


def same_along(value: jax.Array, axes: Iterable[str]) -> jax.Array:
    """`value`, typed as the same along `axes`: the caller knows that all devices there hold the same bits.

    Moves nothing. JAX knows it of the result of a psum, and cannot know it of an algorithm made of permutes. The
    conformance suite checks the claim for every reducer (law L3).
    """
    wanted = varying_axes(value) & frozenset(axes)
    result: jax.Array = _same_along_p.bind(value, axes=tuple(sorted(wanted))) if wanted else value
    return result


def varying_along(value: jax.Array, axes: Iterable[str]) -> jax.Array:
    """`value`, typed as one that may differ along `axes` too. Moves nothing; `jax.lax.pcast` refuses an axis twice."""
    varying = varying_axes(value)
    missing = tuple(sorted(set(axes) - varying))
    result: jax.Array = lax.pcast(value, missing, to="varying") if missing else value
    return result


_same_along_p = Primitive("same_along")


@_same_along_p.def_abstract_eval
def _(aval: ShapedArray, *, axes: tuple[str, ...]) -> ShapedArray:
    kind = aval.manual_axis_type
    return aval.update(manual_axis_type=kind.update(varying=kind.varying - frozenset(axes)))


_same_along_p.def_impl(lambda value, *, axes: value)
mlir.register_lowering(_same_along_p, lambda ctx, value, *, axes: [value])
batching.defvectorized(_same_along_p)


def _transposed(cotangent: jax.Array, value: Any, *, axes: tuple[str, ...]) -> list[jax.Array]:
    """Of n equal values each counts 1/n. Backwards, the permutes that made them equal add up the n parts."""
    del value
    count = lax.axis_size(axes)
    return [varying_along(cotangent / count, axes)]


ad.deflinear2(_same_along_p, _transposed)


# ---- Derivatives ----


LOSSY = "what it sends is rounded or left out, and the derivative of that is 0 almost everywhere"


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def without_derivative(value: jax.Array, reducer: str, why: str) -> jax.Array:
    """`value`; whoever differentiates through it gets a TypeError that names the reducer and says why."""
    del reducer, why
    return value


@without_derivative.defjvp
def _(reducer: str, why: str, values: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    del values, tangents
    raise TypeError(
        f"{reducer} has no derivative: {why}. Differentiate first and reduce the gradients, or sum with a reducer "
        "that has one, such as all_reduce(...)"
    )
