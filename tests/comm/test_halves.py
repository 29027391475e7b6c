"""Brackets in use: where JAX tracks no types, around an inner reducer with state, and wrong arguments refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import (
    AXES,
    Reducer,
    all_reduce,
    as_reducer,
    bucketed,
    cast,
    factored,
    halving_doubling,
    ring,
    rooted,
    scattered,
    sharded,
)
from support.laws import run_reducer

HR = rooted("device", rooted("host"), tree="chunked_chain", chunks=3)
TORUS = factored("device", (2,), lambda row, column: ring(row, ring(column, ring("host"))))


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


@pytest.mark.parametrize("inner", [ring("device"), halving_doubling("device"), HR, TORUS])
def test_runs_without_types_too(inner):
    reducer = bucketed(inner, None)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)

    def total(x):
        return reducer.reduce(x, reducer.init(x, {"host": 1, "device": 4}))[0]

    untyped = jax.shard_map(
        lambda x: total(x[0]), mesh=grid((1, 4)), in_specs=P("device"), out_specs=P(), check_vma=False
    )
    np.testing.assert_array_equal(jax.jit(untyped)(x), x.sum(0))
    mapped = jax.pmap(jax.vmap(total, axis_name="host"), axis_name="device")
    np.testing.assert_array_equal(mapped(x[:, None])[:, 0], np.broadcast_to(x.sum(0), x.shape))


def counting(inner):
    """Counts its calls in its state."""

    def reduce(message, count):
        return inner.reduce(message, ())[0], count + message.size

    return Reducer(lambda spec, _: jnp.zeros((), jnp.int32), reduce, inner.plan)


@pytest.mark.parametrize(
    ("bracket", "share"), [(ring, 3), (halving_doubling, 3), (rooted, 12), (scattered, 3)], ids=lambda b: str(b)[:20]
)
@pytest.mark.parametrize("shape", [(2, 4), (1, 4)])
def test_the_state_of_the_inner_reducer_is_carried(bracket, share, shape):
    reducer = bucketed(bracket("device", counting(all_reduce("host"))), None)
    _, (count,) = run_reducer(reducer, grid(shape), np.ones((*shape, 12), np.float32))
    assert (count == share).all()


ALONG = P("device")


def reduced(reducer, x, in_specs=ALONG):
    mapped = jax.shard_map(lambda x: reducer.reduce(x[0], ())[0], mesh=grid((1, 4)), in_specs=in_specs, out_specs=P())
    return mapped(x)


@pytest.mark.parametrize("reducer", [ring("device"), halving_doubling("device"), rooted("device")])
def test_a_value_that_is_already_summed_is_refused(reducer):
    with pytest.raises(TypeError, match=r"already the same on every device.*pcast"):
        reduced(reducer, jnp.ones((1, 4)), in_specs=P())


@pytest.mark.parametrize(
    "reducer", [ring("device"), halving_doubling("device"), rooted("device", tree="chunked_chain")]
)
def test_a_message_that_does_not_divide_is_refused_with_the_way_out(reducer):
    with pytest.raises(ValueError, match=r"length divides by [48].*bucketed"):
        reduced(reducer, jnp.ones((4, 5)))


def test_factors_left_out_are_refused():
    reducer = factored("device", (2,), lambda near, far: ring(near))
    with pytest.raises(ValueError, match=r"place 0 of 4 exchanges nothing with \[2, 3\]"):
        reduced(reducer, jnp.ones((4, 4)))
    with pytest.raises(ValueError, match=r"place 0 of 8 exchanges nothing with \[2, 3, 4, 5, 6, 7\]"):
        reducer.plan(jax.ShapeDtypeStruct((8,), "float32"), {"device": 8})


@pytest.mark.parametrize(
    "reducer",
    [
        scattered("device", all_reduce("device", "host")),
        halving_doubling("device", all_reduce("host", "device")),
        ring("device", scattered("host", ring("device"))),
        rooted("device", rooted("device", rooted("host"))),
        rooted("host", rooted("device", all_reduce("host"))),
        factored("device", (2,), lambda near, far: scattered(near, scattered(far, ring(near)))),
    ],
)
def test_an_axis_that_is_named_twice_is_refused(reducer):
    """Its devices hold different shards by then, or a sum that would be counted again."""
    spec, sizes = jax.ShapeDtypeStruct((64,), "float32"), {"host": 2, "device": 4}
    with pytest.raises(ValueError, match=r"sums along the same axis again. Name each axis once"):
        reducer.plan(spec, sizes)
    mapped = jax.shard_map(
        lambda x: reducer.reduce(x[0, 0], ())[0], mesh=grid((2, 4)), in_specs=P("host", "device"), out_specs=P()
    )
    with pytest.raises(ValueError, match=r"sums along the same axis again"):
        mapped(jnp.ones((2, 4, 64)))


def test_an_axis_of_one_device_may_be_named_twice():
    reducer = scattered("device", all_reduce("device", "host"))
    plan = reducer.plan(jax.ShapeDtypeStruct((8,), "float32"), {"host": 2, "device": 1})
    assert [collective.kind for collective in plan.collectives] == ["all-reduce"]


def test_numbers_without_fractions_are_not_cast():
    values = {"n": np.full((2, 4, 3), 100_001, np.int32), "z": np.full((2, 4, 2), 1 + 2j, np.complex64)}
    sums, _ = run_reducer(bucketed(cast("float16", all_reduce(*AXES)), None), grid((2, 4)), values)
    assert sums["n"].tolist() == [800_008] * 3
    assert sums["z"].tolist() == [8 + 16j] * 2
    with pytest.raises(ValueError, match=r"cast: wanted a floating-point dtype such as 'bfloat16', got 'int8'"):
        cast("int8", all_reduce("host"))


def test_nothing_is_rounded_where_nothing_travels():
    values = np.array([[[1 / 3, 1e5, 1e-9, 0]]], np.float32)
    for reducer in (cast("float16", all_reduce(*AXES)), scattered("device", cast("float16", all_reduce("host")))):
        assert run_reducer(reducer, grid((1, 1)), values)[0].tolist() == values[0, 0].tolist()


@pytest.mark.parametrize("reducer", [bucketed(all_reduce(*AXES), 64), as_reducer(sharded(AXES, bucket_bytes=64))])
def test_bools_are_refused_by_their_name(reducer):
    values = {"w": np.ones((2, 4, 3), np.float32), "mask": np.ones((2, 4, 3), bool)}
    with pytest.raises(TypeError, match=r"leaf \['mask'\] is bool, of which there is no sum"):
        run_reducer(reducer, grid((2, 4)), values)


def test_a_state_that_is_not_of_the_reducer_is_refused():
    reducer, spec = bucketed(all_reduce("device"), 8), {"w": jnp.ones((4, 4))}
    step = jax.shard_map(lambda x: reducer.reduce(x, ()), mesh=grid((1, 4)), in_specs=ALONG, out_specs=P())
    with pytest.raises(ValueError, match=r"wanted a tuple of 2 states, one a message, got 0.*reducer\.init"):
        step(spec)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="no tree 'binary'; there are: binomial, chain, chunked_chain, star"):
        rooted("device", tree="binary")
    with pytest.raises(ValueError, match="chunks must be at least 1, got 0"):
        rooted("device", tree="chunked_chain", chunks=0)
    with pytest.raises(ValueError, match="piece_bytes must be at least 1, got 0"):
        ring("device", piece_bytes=0)
    with pytest.raises(ValueError, match=r"piece_bytes is 524288.0; wanted a whole number of bytes"):
        ring("device", piece_bytes=0.5 * comm.MiB)
    with pytest.raises(ValueError, match=r"factors of 'device' must be at least 1, got \(0,\)"):
        factored("device", (0,), ring)


def test_a_broadcast_from_roots_needs_no_order_of_axes():
    """The inner axis stands before the outer one in the mesh, and after it: pairs count in the mesh's order."""
    value = np.random.RandomState(0).randint(-8, 9, (2, 3, 7)).astype(np.float32)
    for reducer in (rooted("host", rooted("device")), rooted("device", rooted("host"))):
        got, _ = run_reducer(bucketed(reducer, None), grid((2, 3)), value)
        np.testing.assert_array_equal(got, value.sum((0, 1)))


def test_a_sum_within_a_computation_keeps_its_type():
    """The result may be used where a value that differs by device may not."""

    def f(x):
        total, _ = ring("device").reduce(x[0], ())
        return lax.pcast(total, "device", to="varying")[None] + x

    x = jnp.arange(16.0).reshape(4, 4)
    mapped = jax.shard_map(f, mesh=grid((1, 4)), in_specs=P("device"), out_specs=P("device"))
    np.testing.assert_array_equal(jax.jit(mapped)(x), x.sum(0)[None].repeat(4, 0) + x)
