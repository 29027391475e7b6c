"""Whether an optimizer treats each element by itself, as one that sees shards of the parameters must.

Adam gives an element the same update whatever lies beside it. Clipping by the norm, LARS or Muon do not: of a shard
they would take the norm of the shard, and each device would train by another rule without a word. So the program of an
update is read before the first step: every operation in it must be one of those that go element by element.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from jaxnet.comm.reducer import inner_programs
from jaxnet.errors import InputError

PyTree = Any

_ELEMENTWISE = frozenset(
    [
        *("abs", "add", "clamp", "copy", "copy_p", "div", "max", "min", "mul", "neg", "rem", "sign", "sub"),
        *("cbrt", "cos", "erf", "exp", "exp2", "expm1", "integer_pow", "log", "log1p", "logistic", "pow", "rsqrt"),
        *("sin", "sqrt", "square", "tan", "tanh", "ceil", "floor", "round", "nextafter", "reduce_precision"),
        *("and", "eq", "ge", "gt", "is_finite", "le", "lt", "ne", "not", "or", "xor", "select_n"),
        *("convert_element_type", "stop_gradient", "pvary"),
    ]
)
_CALLS = frozenset(
    [*("closed_call", "cond", "core_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2")]
)
_WHOLE = "take a strategy that keeps the parameters whole, such as hierarchical"


def require_elementwise(optimizer: optax.GradientTransformation, params: PyTree, *, label: str) -> None:
    """Raise InputError unless every operation of an optimizer's update goes element by element.

    Args:
        optimizer: of which nothing else is known.
        params: shapes of the whole parameters.
        label: of the strategy, which gives it shards.
    """
    if mixing := sorted({name for name in map(_mixes, _program(optimizer, params)) if name}):
        raise InputError(
            f"optimizer: it mixes the elements of a parameter ({', '.join(mixing)}), of which strategy={label} gives "
            f"it shards; {_WHOLE}, or jaxnet.Optimizer, whose norms are those of all shards together"
        )


def require_same_rule(optimizer: optax.GradientTransformation, params: PyTree, shards: PyTree, *, label: str) -> None:
    """Raise InputError unless an optimizer does the same to shards as to whole parameters, both given as shapes.

    A mask may look at dims, and a rate at sizes, such as that of a layer's inputs: the programs of both updates must
    have the same operations with the same numbers in them.
    """
    if _rule(_program(optimizer, shards)) != _rule(_program(optimizer, params)):
        raise InputError(
            f"optimizer: what it does to a parameter depends on its shape, and strategy={label} gives it shards of "
            "other shapes; give masks as trees of True and False and rates as numbers, instead of functions that look "
            f"at shapes, or {_WHOLE}"
        )


def _program(optimizer: optax.GradientTransformation, params: PyTree) -> list[JaxprEqn]:
    """All operations of an update of parameters of these shapes."""
    state = jax.eval_shape(optimizer.init, params)
    return list(_operations(jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr))


def _rule(program: list[JaxprEqn]) -> list[tuple[str, list[float], Any]]:
    """The operations and the numbers in them, but for those that only give a number the shape of a parameter."""
    numbers = lambda eqn: [float(var.val) for var in eqn.invars if isinstance(var, Literal) and not np.ndim(var.val)]  # noqa: E731
    kept = [eqn for eqn in program if eqn.primitive.name != "broadcast_in_dim"]
    return [(eqn.primitive.name, numbers(eqn), eqn.params.get("y")) for eqn in kept]


def _operations(program: Jaxpr) -> Iterator[JaxprEqn]:
    for eqn in program.eqns:
        inner = list(inner_programs(eqn)) if eqn.primitive.name in _CALLS else []
        for each in inner:
            yield from _operations(each)
        if not inner:
            yield eqn


def _mixes(eqn: JaxprEqn) -> str:
    """The name of an operation that does not go element by element; "" if it does."""
    name: str = eqn.primitive.name
    shapes = [getattr(var.aval, "shape", ()) for var in (*eqn.invars, *eqn.outvars)]
    of_numbers = not any(shapes) or (name == "broadcast_in_dim" and not shapes[0])
    return "" if name in _ELEMENTWISE or of_numbers else name
