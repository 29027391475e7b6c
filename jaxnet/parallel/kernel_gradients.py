"""Gradients of kernels in the form in which XLA:CPU multiplies fast; the same values up to the order of sums.

A layer maps inputs [rows, k] by a kernel [k, n]. The gradient of the kernel is a product over the rows, `inputs.T @
gradient`, with the gradient [rows, n] of what the layer returned. JAX writes it with the factors exchanged:

    (gradient.T @ inputs).T         dot_general(gradient, inputs, contracting all but the last dim of both), transposed

XLA:CPU (JAX 0.10 to 0.12) has a fast library for `a @ b`, but none that takes a transposed `a`. What it does instead
depends on the shapes; one core of 80 GFLOP/s (AVX2) computes

    activations of three dims, [batch, tokens, k]       15 to 35 GFLOP/s: a copy, then a slow loop
    k and n of several hundred                          40: a loop without the library
    k much larger than n                                5 to 45: the same loop

Here each such product gets a form of its own: over two dims, with the factor transposed that costs least. Then the
same core computes at 50 to 80. Two cores gain as much from the first and the last form, and nothing from the second.
`python -m benchmarks.layers` measures it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

PyTree = Any
Transposed = Literal["inputs", "gradient", "neither"]

_FEW_ROWS = 512  # with fewer, a transposed copy takes longer than it saves
_WIDE_INPUTS, _WIDE_GRADIENT = 128, 512
_MUCH_WIDER = 4
_PROGRAMS = ("jit", "scan", "while", "cond", "remat2")  # the last is jax.checkpoint


def fast_kernel_gradients(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function of arrays, with products over rows in the form that is fast on CPUs.

    Other platforms get the products as they were.

    >>> loss = lambda kernel, x: jnp.sum((x @ kernel) ** 2)
    >>> kernel, x = jnp.ones((4, 2)), jnp.ones((3, 5, 4))
    >>> fast_kernel_gradients(jax.grad(loss))(kernel, x)[0].tolist()
    [120.0, 120.0]
    """

    def rewritten(*arguments: PyTree) -> PyTree:
        program, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        values = jaxpr_as_fun(program.replace(jaxpr=_rewritten(program.jaxpr)))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(results), values)

    return rewritten


def transposed_factor(rows: int, k: int, n: int) -> Transposed:
    """Which factor of `inputs.T @ gradient`, of [rows, k] and [rows, n], is best copied in transposed form.

    >>> [transposed_factor(8192, *sizes) for sizes in ((1024, 1024), (1024, 10), (64, 256))]
    ['inputs', 'gradient', 'neither']
    """
    if rows < _FEW_ROWS:
        return "neither"
    if k >= _MUCH_WIDER * n:
        return "gradient"
    return "inputs" if k >= _WIDE_INPUTS and n >= _WIDE_GRADIENT else "neither"


# ---- Which products, and what becomes of them ----------------------------------------------------------------


def _rewritten(jaxpr: Jaxpr) -> Jaxpr:
    """The program itself if nothing in it changes: JAX lowers a function that is called often once, by identity."""
    equations = [_equation(equation) for equation in jaxpr.eqns]
    return jaxpr if _same(equations, jaxpr.eqns) else jaxpr.replace(eqns=equations)


def _same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(these, those, strict=True))


def _equation(equation: JaxprEqn) -> JaxprEqn:
    """The operation itself, or one with the same operands and results in its place."""
    if equation.primitive.name in _PROGRAMS:
        leaves, structure = jax.tree.flatten(
            equation.params, is_leaf=lambda leaf: isinstance(leaf, ClosedJaxpr | Jaxpr)
        )
        inner = [_inner(leaf) for leaf in leaves]
        return equation if _same(inner, leaves) else equation.replace(params=jax.tree.unflatten(structure, inner))
    if not _is_kernel_gradient(equation):
        return equation
    gradient, inputs = (_array(variable) for variable in equation.invars)
    contracted = len(equation.params["dimension_numbers"][0][0])
    transposed = transposed_factor(*_sizes(gradient, inputs, contracted))
    product = partial(
        _kernel_gradient, contracted=contracted, transposed=transposed, precision=equation.params["precision"]
    )
    call = jax.make_jaxpr(product)(gradient, inputs).eqns[0]
    return equation.replace(primitive=call.primitive, params=call.params)


def _inner(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        inner = _rewritten(value.jaxpr)
        return value if inner is value.jaxpr else value.replace(jaxpr=inner)
    return _rewritten(value) if isinstance(value, Jaxpr) else value


def _is_kernel_gradient(equation: JaxprEqn) -> bool:
    """A product of float32 over all leading dims of both factors, which are the rows."""
    if equation.primitive.name != "dot_general":
        return False
    (left, right), batch = equation.params["dimension_numbers"]
    leading, sharding = tuple(range(len(left))), equation.params["out_sharding"]
    dtypes = {_array(variable).dtype for variable in (*equation.invars, *equation.outvars)}
    return (
        tuple(left) == tuple(right) == leading
        and not any(batch)
        and dtypes == {jnp.dtype("float32")}
        and (sharding is None or not any(sharding.spec))
    )


def _array(variable: Any) -> Any:
    """What is known of an operand: its shape and dtype."""
    return variable.aval


def _sizes(gradient: Any, inputs: Any, contracted: int) -> tuple[int, int, int]:
    """Rows, k and n; the first `contracted` dims of both factors are the rows."""
    n, k = (math.prod(factor.shape[contracted:]) for factor in (gradient, inputs))
    return math.prod(inputs.shape[:contracted]), k, n


# Jitted, so that layers of the same shapes are traced and lowered once.
@partial(jax.jit, static_argnames=("contracted", "transposed", "precision"))
def _kernel_gradient(
    gradient: jax.Array, inputs: jax.Array, contracted: int, transposed: Transposed, precision: Any
) -> jax.Array:
    """The product over the first `contracted` dims: on CPUs over two dims, elsewhere as it was."""
    rows, k, n = _sizes(gradient, inputs, contracted)
    leading = tuple(range(contracted))

    def as_it_was(gradient: jax.Array, inputs: jax.Array) -> jax.Array:
        return lax.dot_general(gradient, inputs, ((leading, leading), ((), ())), precision)

    def on_cpu(gradient: jax.Array, inputs: jax.Array) -> jax.Array:
        found = _product(gradient.reshape(rows, n), inputs.reshape(rows, k), transposed)
        return found.reshape(gradient.shape[contracted:] + inputs.shape[contracted:])

    result: jax.Array = lax.platform_dependent(gradient, inputs, cpu=on_cpu, default=as_it_was)
    return result


def _product(gradient: jax.Array, inputs: jax.Array, transposed: Transposed) -> jax.Array:
    """`gradient.T @ inputs`, [n, k], with a copy of one factor or of neither.

    Barriers keep XLA from taking copies and products together again. JAX transposes the result, and of two
    transpositions in a row none is left. The last form is what XLA makes of JAX's own, too, but then the result has
    columns in memory until layouts are assigned, and for such a matrix the library takes no sum, as the guard and
    norms of gradients ask: a slow loop does.
    """
    kept = lax.optimization_barrier
    if transposed == "inputs":
        return kept(kept(inputs.T) @ gradient).T
    if transposed == "gradient":
        return kept(kept(gradient.T) @ inputs)
    return lax.dot_general(inputs, gradient, (((0,), (0,)), ((), ()))).T
