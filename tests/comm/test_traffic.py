"""Traffic shaped for a platform: the same sums to the last bit, in whole tiles or with a bound on what is under way."""

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm import (
    STRATEGIES,
    all_reduce,
    bucketed,
    named_strategy,
    on_platform,
    pipelined,
    ring_halves,
    scattered,
    sharded,
    tiled,
)
from jaxnet.comm.sharded import Sharded, as_reducer
from support.laws import lowered, run_reducer

STAGED = bucketed(scattered("device", all_reduce("host")), 3000)
SUMMED = [name for name in STRATEGIES if named_strategy(name).kind in ("replicated", "sharded")]
TILE = 4096


def reducer_of(strategy):
    return as_reducer(strategy.reducer) if isinstance(strategy.reducer, Sharded) else strategy.reducer


def values(mesh):
    """Whole numbers, whose sums are the same in every order."""
    draw = np.random.RandomState(0)
    shapes = {"a": (700, 5), "b": (), "c": (0, 3), "d": (41,), "e": (30, 20)}
    return {name: draw.randint(-99, 99, (*mesh.devices.shape, *shape)).astype("f") for name, shape in shapes.items()}


def shapes_of(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), tree)


@pytest.mark.parametrize("platform", [pytest.param("gpu", marks=pytest.mark.slow), "tpu"])
@pytest.mark.parametrize("name", SUMMED)
def test_a_strategy_sums_to_the_same_bits_on_every_platform(name, platform):
    mesh = comm.make_mesh(2, jax.devices()[:4])
    size = 3000 if comm.has_bucket_size(name) else None
    plain = named_strategy(name, size)
    shaped = on_platform(plain, platform)
    given = values(mesh)
    want, _ = run_reducer(reducer_of(plain), mesh, given)
    got, _ = run_reducer(reducer_of(shaped), mesh, given)
    for leaf in want:
        np.testing.assert_array_equal(got[leaf], want[leaf], err_msg=leaf)
    assert eval(repr(shaped.reducer), vars(comm)).expression == shaped.reducer.expression


@pytest.mark.parametrize("name", ["hierarchical", "blueconnect", "zero", "s_caffe_obr", "parameter_server"])
def test_shards_are_whole_tiles_and_so_are_those_of_the_compiled_program(name):
    mesh = comm.make_mesh(2, jax.devices()[:8])
    given = values(mesh)
    reducer = reducer_of(on_platform(named_strategy(name, 3000 if comm.has_bucket_size(name) else None), "tpu"))
    plan = reducer.plan(shapes_of(given), mesh.shape)
    cut = [each for each in plan.collectives if each.kind in ("reduce-scatter", "all-gather")]
    assert cut
    assert all(each.elements % (TILE * each.size) == 0 for each in cut)
    hlo = lowered(reducer, mesh, given).compile(comm.compiler_options("cpu")).as_text()
    check = comm.verify(hlo, plan.collectives, mesh.shape)
    assert (check.missing, check.extra) == ((), ())


def test_a_sum_without_shards_is_not_padded():
    mesh = {"host": 2, "device": 4}
    plain = bucketed(all_reduce("host", "device"), 3000)
    shapes = {"w": jax.ShapeDtypeStruct((700, 5), "float32")}
    assert tiled(plain).plan(shapes, mesh).collectives == plain.plan(shapes, mesh).collectives


def barriers(reducer):
    """How many buckets wait for another."""
    mesh = comm.make_mesh(2, jax.devices()[:4])
    return lowered(reducer, mesh, {"w": np.zeros((2, 2, 4000), "f")}).as_text().count("optimization_barrier")


def test_a_bucket_in_stages_waits_for_the_one_two_before_it():
    buckets = len(
        STAGED.plan({"w": jax.ShapeDtypeStruct((4000,), "float32")}, {"host": 2, "device": 2}).buckets.buckets
    )
    assert buckets == 6
    assert barriers(pipelined(STAGED)) == barriers(STAGED) + buckets - 2
    assert barriers(pipelined(STAGED, 1)) == barriers(STAGED) + buckets - 1


def test_a_bucket_of_one_stage_waits_for_none_and_a_bound_of_its_own_stays():
    flat = bucketed(all_reduce("host", "device"), 3000)
    assert barriers(pipelined(flat)) == barriers(flat)
    own = bucketed(scattered("device", all_reduce("host")), 3000, in_flight=4)
    assert barriers(pipelined(own)) == barriers(own)


def test_shards_of_two_stages_are_pipelined_too():
    two, one = sharded("device", "host", bucket_bytes=3000), sharded(comm.AXES, bucket_bytes=3000)
    assert barriers(as_reducer(pipelined(two))) == barriers(as_reducer(two)) + 4
    assert barriers(as_reducer(pipelined(one))) == barriers(as_reducer(one))


@pytest.mark.parametrize("platform", ["cpu", "rocm"])
def test_elsewhere_a_strategy_stays_as_it_is(platform):
    strategy = named_strategy("hierarchical")
    assert on_platform(strategy, platform) is strategy
    assert on_platform(named_strategy("xla"), "tpu").reducer is None


@pytest.mark.parametrize("tile", [0, 100, -128])
def test_a_tile_is_a_number_of_rows(tile):
    with pytest.raises(ValueError, match=f"a multiple of 128 elements, got {tile}"):
        tiled(STAGED, tile)


def test_a_pipeline_has_at_least_one_bucket():
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        pipelined(STAGED, 0)


def test_sizes_follow_the_platform_unless_they_are_given():
    assert "25 * MiB" in repr(named_strategy("zero", platform="gpu").reducer)
    assert "1 * MiB" in repr(named_strategy("zero").reducer)
    assert "bucket_bytes=3000" in repr(named_strategy("zero", 3000, platform="gpu").reducer)
    assert "piece_bytes=1 * MiB" in repr(named_strategy("torus").reducer)
    assert "piece_bytes" not in repr(named_strategy("torus", platform="gpu").reducer)


def test_other_halves_keep_their_own_form():
    rings = sharded(ring_halves("device"), bucket_bytes=None)
    plan = tiled(rings).plan({"w": jax.ShapeDtypeStruct((5,), "float32")}, {"device": 2})
    assert {each.elements for each in plan.collectives} == {TILE}
