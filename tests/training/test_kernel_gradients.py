"""Products over rows in the form that is fast on CPUs: the same values, in fewer slow products."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxnet.comm import AXES, make_mesh
from jaxnet.models import Transformer, network_options
from jaxnet.parallel import kernel_gradients
from jaxnet.parallel.kernel_gradients import fast_kernel_gradients, transposed_factor

WIDE = {"inputs": (512, 256, 512), "gradient": (512, 256, 64), "neither": (512, 64, 64)}


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def square_loss(kernel, x):
    return jnp.mean((x @ kernel) ** 2)


def over_rows(program, platform="cpu"):
    """The products that contract the first dims of both factors: those that are slow."""
    text = program.lower(lowering_platforms=(platform,)).as_text()
    contracted = re.findall(r"contracting_dims = \[([\d, ]*)\] x \[([\d, ]*)\]", text)
    assert contracted
    return [dims for dims, same in contracted if dims == same and dims.startswith("0")]


@settings(max_examples=40, deadline=None)
@given(
    batch=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    k=st.integers(1, 9),
    n=st.integers(1, 9),
    form=st.sampled_from(sorted(WIDE)),
)
def test_any_form_of_any_shape_gives_the_gradient(batch, k, n, form):
    x, kernel = random(*batch, k), random(k, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_gradients, "transposed_factor", lambda rows, k, n: form)
        found = jax.jit(fast_kernel_gradients(jax.grad(square_loss, argnums=(0, 1))))(kernel, x)
    wanted = jax.jit(jax.grad(square_loss, argnums=(0, 1)))(kernel, x)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", WIDE)
def test_the_form_follows_from_the_shape(form):
    rows, k, n = WIDE[form]
    assert transposed_factor(rows, k, n) == form
    assert transposed_factor(rows - 1, k, n) == "neither"


@pytest.mark.parametrize("form", ["inputs", "gradient"])
def test_a_wide_kernel_gradient_is_a_product_that_the_library_takes(form):
    rows, k, n = WIDE[form]
    shapes = jax.ShapeDtypeStruct((k, n), "float32"), jax.ShapeDtypeStruct((rows, k), "float32")
    assert over_rows(jax.jit(jax.grad(square_loss)).trace(*shapes))
    assert not over_rows(jax.jit(fast_kernel_gradients(jax.grad(square_loss))).trace(*shapes))


def compiled(function, *arguments):
    """For the CPU, as the trainer compiles it."""
    return jax.jit(function, compiler_options=network_options("cpu")).lower(*arguments).compile()


@pytest.mark.parametrize(("rows", "k", "n"), [*WIDE.values(), (192, 300, 700)])
def test_the_library_sums_a_kernel_gradient_as_the_guard_asks(rows, k, n):
    shapes = jax.ShapeDtypeStruct((k, n), "float32"), jax.ShapeDtypeStruct((rows, k), "float32")

    def with_sum(gradient):
        return lambda *given: (lambda found: (found, found.sum()))(gradient(*given))

    plain, fast = (
        compiled(with_sum(gradient), *shapes).as_text()
        for gradient in (jax.grad(square_loss), fast_kernel_gradients(jax.grad(square_loss)))
    )
    assert "reduce-window" in plain
    assert "reduce-window" not in fast


def in_a_scan(kernel, x):
    return jax.lax.scan(lambda total, part: (total + square_loss(kernel, part), None), 0.0, x)[0]


NESTED = {
    "jit": lambda kernel, x: jax.jit(square_loss)(kernel, x),
    "remat": lambda kernel, x: jax.checkpoint(square_loss)(kernel, x),
    "cond": lambda kernel, x: jax.lax.cond(x[0, 0, 0] > -9, square_loss, lambda *given: 0.0, kernel, x),
    "scan": in_a_scan,
}


@pytest.mark.parametrize("nested", NESTED)
def test_products_inside_other_programs_are_found(nested):
    x, kernel = random(2, 512, 256), random(256, 512)
    gradient = jax.grad(NESTED[nested])
    fast = jax.jit(fast_kernel_gradients(gradient))
    assert not over_rows(fast.trace(kernel, x))
    np.testing.assert_allclose(fast(kernel, x), jax.jit(gradient)(kernel, x), rtol=1e-4, atol=1e-5)


def test_a_transformer_has_no_slow_product_and_the_same_gradient():
    model = Transformer(positions=64, dim=32, depth=2, heads=2, dropout=0.0)
    tokens = np.random.default_rng(0).integers(0, 256, (8, 64), np.uint8)
    params = model.init(jax.random.key(0), tokens, train=False)

    def loss(params):
        return jnp.mean(model.apply(params, tokens, train=False) ** 2)

    plain, fast = (compiled(each, params) for each in (jax.grad(loss), fast_kernel_gradients(jax.grad(loss))))
    slow = re.compile(r" dot\(.*lhs_contracting_dims=\{0\}, rhs_contracting_dims=\{1\}")
    assert len(slow.findall(plain.as_text())) >= 9  # 4 kernels a block, and the head's
    assert not slow.findall(fast.as_text())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), fast(params), plain(params))


def test_it_goes_along_with_axes_of_a_mesh():
    mesh = make_mesh()
    x, kernel = random(mesh.size, 512, 256), random(256, 512)

    def on_device(kernel, x):
        kernel = jax.lax.pcast(kernel, AXES, to="varying")
        return jax.lax.psum(fast_kernel_gradients(jax.grad(square_loss))(kernel, x), AXES)

    mapped = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P(AXES)), out_specs=P()))
    wanted = sum(jax.grad(square_loss)(kernel, part[None]) for part in x)
    np.testing.assert_allclose(mapped(kernel, x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_multiply_as_before(platform):
    model, x = nn.Dense(512), random(2, 512, 256)
    params = model.init(jax.random.key(0), x)
    gradient = jax.grad(lambda params: jnp.mean(model.apply(params, x) ** 2))
    fast = jax.jit(fast_kernel_gradients(gradient)).trace(params)
    assert over_rows(fast, platform) == over_rows(jax.jit(gradient).trace(params), platform)
    assert "optimization_barrier" not in fast.lower(lowering_platforms=(platform,)).as_text()
    assert over_rows(fast, platform) != over_rows(fast, "cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_are_left_alone(dtype):
    x, kernel = random(512, 256).astype(dtype), random(256, 512).astype(dtype)
    assert over_rows(jax.jit(fast_kernel_gradients(jax.grad(square_loss))).trace(kernel, x))


def test_layers_of_equal_shapes_share_a_program():
    """So that they are traced and lowered once."""

    def loss(kernels, x):
        return jnp.mean((x @ kernels[0] @ kernels[1]) ** 2)

    kernels, x = [random(256, 256), random(256, 256)], random(2, 256, 256)
    program = jax.make_jaxpr(fast_kernel_gradients(jax.grad(loss)))(kernels, x)
    inner = [equation.params["jaxpr"] for equation in program.eqns if equation.primitive.name == "jit"]
    assert len(inner) == 2
    assert inner[0] is inner[1]


def test_a_program_without_such_products_stays_the_same_object():
    jaxpr = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) @ x))(random(4, 4)).jaxpr
    assert kernel_gradients._rewritten(jaxpr) is jaxpr
