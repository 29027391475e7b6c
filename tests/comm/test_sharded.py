"""Values in shards: they are the sums, they come back whole, and they travel when they should."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import (
    halving_doubling_halves,
    ring_halves,
    rooted_halves,
    scatter_after,
    sharded,
    shards_in_order,
)
from support.laws import PER_DEVICE, Trees, trees

WAYS = {
    "by_level": sharded("device", "host", bucket_bytes=100),
    "by_level_other_way": sharded("host", "device", bucket_bytes=64),
    "one_stage": sharded(("host", "device"), bucket_bytes=100),
    "per_leaf": sharded(comm.AXES, bucket_bytes=1, split=False),
    "one_message": sharded("device", "host", bucket_bytes=None),
    "rings": sharded(ring_halves("device"), ring_halves("host", piece_bytes=8), bucket_bytes=100),
    "ring_across": sharded("device", ring_halves("host"), bucket_bytes=None),
    "halving_doubling": sharded(halving_doubling_halves("host"), halving_doubling_halves("device"), bucket_bytes=64),
    "after_backward": scatter_after(sharded("device", "host", bucket_bytes=100)),
}
MESHES = [(1, 8), (2, 4), (3, 2), (1, 1)]
SIZES = {"kernel": (7, 5), "bias": (5,), "scalar": (), "empty": (0, 3), "deep": {"w": (33,)}}

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
every_mesh = pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


def example(shape):
    """A tree for each device, leading dims [hosts, devices], of integers, so that sums are exact."""
    draw = np.random.RandomState(0)
    make = lambda s: draw.randint(-8, 9, (*shape, *s)).astype(np.float32)  # noqa: E731
    return jax.tree.map(make, SIZES, is_leaf=lambda node: isinstance(node, tuple))


def total(values):
    return jax.tree.map(lambda v: v.sum((0, 1), dtype=v.dtype), values)


def shapes_of(values):
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), values)


def mapped(function, mesh, *specs):
    """`function` of one device's values; JAX's types are checked, so what is said to be the same is so."""
    *inputs, output = specs
    on_device = jax.shard_map(function, mesh=mesh, in_specs=tuple(inputs), out_specs=output)
    return jax.jit(on_device, compiler_options=comm.compiler_options("cpu"))


def own(values):
    return jax.tree.map(lambda v: v[0, 0], values)


def there_and_back(way, mesh, shapes):
    """The shards, and what is gathered from them on each device."""

    def both(values):
        shards = way.scatter(own(values))
        whole = lax.pcast(way.gather(shards, shapes), comm.AXES, to="varying")
        return shards, jax.tree.map(lambda leaf: leaf[None, None], whole)

    return mapped(both, mesh, PER_DEVICE, (P(way.axes), PER_DEVICE))


@functools.cache
def compiled(way, shape):
    """`there_and_back` of the example; `way` by name."""
    values = example(shape)
    return there_and_back(WAYS[way], grid(shape), shapes_of(values)).lower(values).compile()


@every_mesh
@pytest.mark.parametrize("way", WAYS)
def test_shards_are_the_sum_and_every_device_gathers_the_same(way, shape):  # L1, L3, L4
    values, devices = example(shape), shape[0] * shape[1]
    shards, gathered = jax.device_get(compiled(way, shape)(values))
    for shard, whole, wanted in zip(*map(jax.tree.leaves, (shards, gathered, total(values))), strict=True):
        flat = wanted.reshape(-1)
        assert shard.shape == (-(-flat.size // devices) * devices,)
        np.testing.assert_array_equal(shard[: flat.size], flat)
        assert not shard[flat.size :].any()
        np.testing.assert_array_equal(whole, np.broadcast_to(wanted, whole.shape))


@every_mesh
@pytest.mark.parametrize("way", WAYS)
def test_compiled_collectives_are_the_planned_ones(way, shape):  # L6
    mesh = grid(shape)
    planned = WAYS[way].plan(shapes_of(example(shape)), mesh.shape).collectives
    check = comm.verify(compiled(way, shape).as_text(), planned, mesh.shape)
    assert check.ok, check.explain()
    assert not check.extra
    assert (len(planned) == 0) == (shape == (1, 1))


@every_way
@settings(max_examples=5)
@given(tree=trees())
def test_any_tree(way, tree: Trees):  # L1 and L5 together
    values = tree.values((2, 2))
    shards, gathered = there_and_back(way, grid((2, 2)), shapes_of(values))(values)
    assert jax.tree.structure(shards) == jax.tree.structure(gathered) == jax.tree.structure(values)
    for whole, shard, wanted in zip(*map(jax.tree.leaves, (gathered, shards, total(values))), strict=True):
        assert whole.dtype == shard.dtype == wanted.dtype
        np.testing.assert_array_equal(whole[0, 0], wanted)


@every_mesh
@every_way
def test_split_cuts_without_moving_and_gather_undoes_it(way, shape):
    mesh, values = grid(shape), jax.tree.map(lambda v: v[0, 0], example(shape))
    split = mapped(way.split, mesh, P(), P(way.axes))
    assert not comm.verify(split.lower(values).compile().as_text(), [], mesh.shape).found
    joined = mapped(lambda shards: way.gather(shards, values), mesh, P(way.axes), P())(split(values))
    for got, wanted in zip(jax.tree.leaves(joined), jax.tree.leaves(values), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_gradient_that_is_already_summed_is_refused():
    way = WAYS["by_level"]

    def wrong(params, x):
        return way.scatter(jax.grad(lambda p: (p["w"] * x.sum()).sum())(params))

    with pytest.raises(TypeError, match=r"leaf \['w'\] is already the same on every device.*pcast"):
        mapped(wrong, grid((2, 4)), P(), P(comm.AXES), P(way.axes))({"w": jnp.ones(3)}, jnp.ones(8))


@pytest.mark.parametrize("stages", [("host", ("host", "device")), ("device", comm.ring_halves("device"))])
def test_an_axis_in_two_stages_is_refused(stages):
    with pytest.raises(TypeError, match="sharded takes the names of mesh axes, each once"):
        sharded(*stages, bucket_bytes=None)


def test_a_stage_that_leaves_no_shards_is_refused():
    with pytest.raises(ValueError, match=r"rooted_halves\('host'\) leaves the whole sum on a root.*ring_halves"):
        sharded("device", rooted_halves("host"), bucket_bytes=None)
    near = comm.Factor("device", (2,), 0)
    with pytest.raises(ValueError, match=r"spans a factor of an axis.*Take the name of an axis"):
        sharded(ring_halves(near), bucket_bytes=None)
    with pytest.raises(ValueError, match="takes mesh axes, or one factor of an axis by itself"):
        comm.xla_halves(near, "host")


def test_order_decides_which_leaves_travel_together_and_nothing_else():
    mesh, values = grid((2, 4)), example((2, 4))
    way, shapes = WAYS["by_level"], shapes_of(values)
    backwards = shards_in_order((4, 3, 2, 1, 0), way)
    for got, wanted in zip(
        *(jax.tree.leaves(there_and_back(w, mesh, shapes)(values)) for w in (backwards, way)), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    assert backwards.plan(shapes, mesh.shape).buckets.shapes == way.plan(shapes, mesh.shape).buckets.shapes[::-1]
    with pytest.raises(ValueError, match="permutation of the 5 leaves"):
        shards_in_order((0, 0), way).plan(shapes, mesh.shape)


def test_by_level_fewest_bytes_cross_hosts():
    spec, sizes = [jax.ShapeDtypeStruct((8000,), "float32")], {"host": 2, "device": 8}
    by_level = sharded("device", "host", bucket_bytes=None).plan(spec, sizes)
    assert comm.wire_bytes_per_axis(by_level.collectives) == {"device": 2 * 28_000, "host": 2 * 2_000}


LAYERS, WIDTH = 6, 64


def deep_step(way):
    """A step of a network of six layers, one bucket each, with the collectives found in its program."""
    shapes = {f"layer_{i}": jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32") for i in range(LAYERS)}
    shards = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.size,), leaf.dtype), shapes)
    x = jax.ShapeDtypeStruct((64, WIDTH), "float32")

    def loss(params, x):
        for i in range(LAYERS):
            x = jnp.tanh(x @ params[f"layer_{i}"])
        return (x**2).mean()

    way = shards_in_order(comm.backward_order(jax.grad(loss), shapes, x), way)

    def step(shards, x):
        params = lax.pcast(way.gather(shards, shapes), comm.AXES, to="varying")
        return jax.tree.map(lambda p, g: p - 0.1 * g, shards, way.scatter(jax.grad(loss)(params, x)))

    mesh = grid((2, 4))
    hlo = mapped(step, mesh, P(way.axes), P(comm.AXES), P(way.axes)).lower(shards, x).compile().as_text()
    check = comm.verify(hlo, way.plan(shapes, mesh.shape).collectives, mesh.shape)
    assert check.ok, check.explain()
    assert not check.extra
    return check.found


LAYER_BYTES = 4 * WIDTH * WIDTH


@pytest.mark.parametrize(
    "way", [sharded("device", "host", bucket_bytes=LAYER_BYTES), sharded(comm.AXES, bucket_bytes=LAYER_BYTES)]
)
def test_gathers_spread_over_forward_and_scatters_over_backward(way):
    found = deep_step(way)
    first = found[:: len(found) // (2 * LAYERS)]  # of each bucket, the first stage
    assert [item.kind for item in first] == ["all-gather"] * LAYERS + ["reduce-scatter"] * LAYERS
    gathers, scatters = first[:LAYERS], first[LAYERS:]
    assert [item.compute_before > 0 for item in gathers] == [False] + [True] * (LAYERS - 1)
    assert all(item.compute_before > 0 for item in scatters[:-1])
    layers = [item.op_name.split("gather_")[1][0] for item in gathers]
    assert layers == ["5", "4", "3", "2", "1", "0"]  # forward's order


def test_stages_of_a_bucket_stay_together():
    found = deep_step(sharded("device", "host", bucket_bytes=LAYER_BYTES))
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert first.kind == second.kind
        assert second.compute_before == 0


def test_after_lets_nothing_be_scattered_before_the_end_of_backward():
    found = deep_step(scatter_after(sharded("device", "host", bucket_bytes=LAYER_BYTES)))
    first, *rest = [item for item in found if item.kind == "reduce-scatter"]
    assert first.compute_before > 0
    assert all(item.compute_before == 0 for item in rest)
    assert sum(item.compute_before > 0 for item in found if item.kind == "all-gather") == LAYERS - 1


def test_in_a_loop_that_is_not_ours():
    """ZeRO-1 with Optax in a dozen lines, beside plain Optax on one device."""
    mesh, way, optimizer = grid((2, 4)), sharded("device", "host", bucket_bytes=64), optax.adam(0.05)
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    x = np.random.RandomState(0).standard_normal((16, 3)).astype(np.float32)

    def loss(params, x):
        return ((x @ params["w"] + params["b"][None]) ** 2).mean()

    def step(shards, state, x):
        varying = lax.pcast(way.gather(shards, params), comm.AXES, to="varying")
        sums = way.scatter(jax.grad(loss)(varying, x))
        updates, state = optimizer.update(jax.tree.map(lambda total: total / 8, sums), state, shards)
        return optax.apply_updates(shards, updates), state

    cut = P(way.axes)
    state_specs = jax.tree.map(lambda leaf: cut if leaf.ndim else P(), jax.eval_shape(optimizer.init, params))
    shards = mapped(way.split, mesh, P(), cut)(params)
    state = optimizer.init(shards)
    train = mapped(step, mesh, cut, state_specs, P(comm.AXES), (cut, state_specs))
    wanted, plain = params, optimizer.init(params)
    for _ in range(5):
        shards, state = train(shards, state, x)
        updates, plain = optimizer.update(jax.grad(loss)(wanted, x), plain)
        wanted = optax.apply_updates(wanted, updates)
    got = mapped(lambda shards: way.gather(shards, params), mesh, cut, P())(shards)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_reducer_of_shards_plans_in_the_order_of_issue_and_counts_whole_messages():
    """Of the leaves [1024] and [10] on 8 devices: scattered, then gathered the last first; 10 elements in 16."""
    shapes, sizes = [jax.ShapeDtypeStruct((n,), "float32") for n in (1024, 10)], {"host": 2, "device": 4}
    plan = comm.as_reducer(sharded(comm.AXES, bucket_bytes=1, split=False)).plan(shapes, sizes)
    issued = [("reduce-scatter", 1024), ("reduce-scatter", 16), ("all-gather", 16), ("all-gather", 1024)]
    assert [(each.kind, each.elements) for each in plan.collectives] == issued
    assert [(bucket.size, bucket.padded) for bucket in plan.buckets.buckets] == [(1024, 1024), (10, 16)]


@pytest.mark.parametrize("name", comm.STRATEGIES)
def test_buckets_of_every_replicated_strategy_hold_every_element_once(name):
    strategy, shapes = comm.named_strategy(name), [jax.ShapeDtypeStruct(each, "float32") for each in ((33, 7), (5,))]
    if strategy.kind in ("xla", "sharded") or strategy.reducer.by_shape:
        return
    plan = strategy.reducer.plan(shapes, {"host": 2, "device": 4})
    assert sum(bucket.size for bucket in plan.buckets.buckets) == 33 * 7 + 5
