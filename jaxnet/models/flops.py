"""How much arithmetic a function does: multiplications and additions of convolutions and matrix products."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def count_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Floating-point operations of `function(*arguments)`, counted from its jaxpr; nothing is computed.

    A multiplication and its addition are two. Only convolutions and matrix products count, as in published figures
    (which often call one such pair one operation); places of padding count as others do.

    Args:
        function: as `jax.make_jaxpr` takes it.
        arguments: arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        ValueError: a convolution or matrix product is in a `while` or `cond`, which runs an unknown number of times.

    >>> import jax.numpy as jnp
    >>> count_flops(jnp.dot, jax.ShapeDtypeStruct((5, 3), "float32"), jax.ShapeDtypeStruct((3, 7), "float32"))
    210
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_flops(jaxpr: Jaxpr) -> int:
    return sum(_flops(equation) for equation in jaxpr.eqns)


def _flops(equation: JaxprEqn) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "conv_general_dilated":
        kernel, outputs = _shape(equation.invars[1]), params["dimension_numbers"].rhs_spec[0]
        return 2 * _results(equation) * math.prod(kernel) // kernel[outputs]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = _shape(equation.invars[0])
        return 2 * _results(equation) * math.prod(left[dim] for dim in contracted)
    inside = sum(map(_jaxpr_flops, _inner(params)))
    if inside and name in ("while", "cond"):
        raise ValueError(f"cannot count the operations in a {name!r}: how often it runs is not known")
    return inside * params["length"] if name == "scan" else inside


def _results(equation: JaxprEqn) -> int:
    return math.prod(_shape(equation.outvars[0]))


def _shape(variable: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.aval.shape
    return shape


def _inner(params: dict[str, Any]) -> list[Jaxpr]:
    """The programs that an operation calls."""
    values = jax.tree.leaves(list(params.values()), is_leaf=lambda value: isinstance(value, ClosedJaxpr | Jaxpr))
    found = [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in values]
    return [value for value in found if isinstance(value, Jaxpr)]
