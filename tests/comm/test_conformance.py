"""The laws that every reducer obeys. A new reducer is one line in `REDUCERS` and inherits all of them.

The reference is a plain sum in NumPy over the values of the devices. A reducer is compiled once a mesh, with
every device's result as output, and the laws look at what it gives.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import (
    KiB,
    Reducer,
    all_reduce,
    as_reducer,
    bucketed,
    by_bucket,
    cast,
    codecs,
    compressed,
    compressed_scattered,
    factored,
    grouped,
    halving_doubling,
    halving_doubling_halves,
    merged_by_cost,
    powersgd,
    ring,
    ring_halves,
    rooted,
    scattered,
    sharded,
)
from support import laws
from support.laws import Trees, run_reducer, trees


class Case(NamedTuple):
    reducer: Reducer
    tolerance: float = 1e-6  # of the largest sum, for float32 inputs; if lossy, of the norm of all sums
    lossy: bool = False  # not even small integers survive


FLAT = all_reduce("host", "device")
TWO_LEVEL = scattered("device", all_reduce("host"))
CHUNKED = {"tree": "chunked_chain", "chunks": 2}


# Named, not lambdas: a reducer prints the name, and its text evaluates back.


def from_the_last(sizes):
    return [[leaf] for leaf in reversed(range(len(sizes)))]


def rings(row, column):
    return ring(row, ring(column, ring("host")))


def scatters(near, far):
    return scattered(near, scattered(far, all_reduce("host")))


def chained_trees(near, far):
    return rooted(near, rooted(far, rooted("host"), **CHUNKED), **CHUNKED)


def trees_across(near, far):
    return rooted(near, rooted(far), tree="chain")


def three_algorithms(a, b, c):
    return halving_doubling(b, rooted(c, scattered(a, ring("host"))))


REDUCERS = {
    # Buckets
    "per_leaf": Case(bucketed(FLAT, 1, split=False)),
    "flat": Case(bucketed(FLAT, None)),
    "buckets": Case(bucketed(FLAT, 64)),
    "whole_leaves": Case(bucketed(FLAT, 64, first_bucket_bytes=16, split=False)),
    "merged": Case(grouped(FLAT, merged_by_cost(alpha=30, beta=0.5, seconds_per_byte=1))),
    "leaf_by_leaf_from_the_last": Case(grouped(TWO_LEVEL, from_the_last)),
    "after_backward": Case(comm.after(bucketed(TWO_LEVEL, 64))),
    "during_backward": Case(comm.during(bucketed(TWO_LEVEL, 64))),
    "one_in_flight": Case(bucketed(FLAT, 1, split=False, in_flight=1)),
    "two_in_flight": Case(bucketed(TWO_LEVEL, 64, in_flight=2)),
    # The backend's own collectives, nested
    "hierarchical": Case(bucketed(TWO_LEVEL, 100)),
    "hierarchical_flat": Case(bucketed(TWO_LEVEL, None)),
    "other_way_round": Case(bucketed(scattered("host", all_reduce("device")), 1 * KiB)),
    "scattered_twice": Case(bucketed(scattered("device", scattered("host", all_reduce())), 100)),
    "blueconnect": Case(bucketed(factored("device", (2,), scatters), None)),
    "shards": Case(as_reducer(sharded("device", "host", bucket_bytes=64))),
    # Permutes
    "ring": Case(bucketed(ring("device", ring("host")), None)),
    "ring_in_pieces": Case(bucketed(ring("device", all_reduce("host"), piece_bytes=8), 200)),
    "torus": Case(bucketed(factored("device", (4,), rings), 200)),
    "halving_doubling": Case(bucketed(halving_doubling("device", halving_doubling("host")), None)),
    "halving_doubling_in_pieces": Case(bucketed(halving_doubling("host", all_reduce("device"), piece_bytes=12), 100)),
    "shards_around_rings": Case(
        as_reducer(sharded(ring_halves("device", piece_bytes=8), ring_halves("host"), bucket_bytes=64))
    ),
    "shards_by_halving": Case(as_reducer(sharded(halving_doubling_halves("device"), "host", bucket_bytes=100))),
    "binomial": Case(bucketed(rooted("device", rooted("host")), 100)),
    "chain": Case(bucketed(rooted("host", rooted("device", tree="chain"), tree="chain"), None)),
    "star": Case(bucketed(rooted("device", rooted("host", tree="star"), tree="star"), None)),
    "s_caffe_cb": Case(bucketed(rooted("device", rooted("host"), tree="chunked_chain", chunks=3), 100)),
    "s_caffe_cc": Case(bucketed(rooted("device", rooted("host", **CHUNKED), tree="chunked_chain", chunks=4), None)),
    "s_caffe_ccb": Case(bucketed(factored("device", (2,), chained_trees), None)),
    "groups_of_hosts": Case(bucketed(rooted("device", factored("host", (2,), trees_across)), None)),
    "chunks_in_pieces": Case(bucketed(rooted("device", rooted("host"), **CHUNKED, piece_bytes=16), None)),
    "all_reduce_of_roots": Case(bucketed(rooted("device", all_reduce("host")), None)),
    "ring_of_roots": Case(bucketed(rooted("device", ring("host"), tree="chain"), None)),
    "three_factors": Case(bucketed(factored("device", (2, 2), three_algorithms), None)),
    # Compressed
    "float16": Case(bucketed(cast("float16", FLAT), 64), 8e-3),
    "bfloat16_summed_across_hosts": Case(bucketed(scattered("device", cast("bfloat16", all_reduce("host"))), 64), 6e-2),
    "float16_gathered": Case(bucketed(compressed(*comm.AXES, codec=codecs.float16), 200), 2e-3),
    "bfloat16_scattered": Case(bucketed(compressed_scattered(*comm.AXES, codec=codecs.bfloat16), 200), 2e-2),
    "float16_across_hosts": Case(bucketed(scattered("device", compressed("host", codec=codecs.float16)), 200), 2e-3),
    "powersgd_of_nothing_worth_it": Case(powersgd(4, bucketed(TWO_LEVEL, 100), factors=TWO_LEVEL)),
    "buckets_in_buckets": Case(by_bucket(bucketed(FLAT, 32), 100)),
    "int8": Case(bucketed(compressed(*comm.AXES, codec=codecs.int8(16)), 200), 1e-2, lossy=True),
    "one_bit": Case(bucketed(compressed_scattered(*comm.AXES, codec=codecs.one_bit(16)), 200), 0.75, lossy=True),
    "two_bit": Case(bucketed(scattered("device", compressed("host", codec=codecs.two_bit(0.5))), 200), 0.9, lossy=True),
    "top_k": Case(bucketed(compressed(*comm.AXES, codec=codecs.top_k(0.1)), None), 0.85, lossy=True),
    "powersgd": Case(powersgd(1, bucketed(FLAT, 64), factors=FLAT), 0.65, lossy=True),
    "powersgd_by_bucket": Case(by_bucket(powersgd(1, bucketed(FLAT, None), factors=FLAT), 200), 0.65, lossy=True),
}
EXACT = [name for name, case in REDUCERS.items() if not case.lossy]
# Each way from a tree to messages, and a few of the algorithms in them.
LIFTS = (
    *("per_leaf", "flat", "buckets", "whole_leaves", "merged", "leaf_by_leaf_from_the_last", "after_backward"),
    *("during_backward", "one_in_flight", "two_in_flight", "hierarchical", "shards", "halving_doubling", "float16"),
    "powersgd_of_nothing_worth_it",
    "buckets_in_buckets",
)
MESHES = [(1, 8), (2, 4), (3, 2), (7, 1), (1, 1)]
MORE_MESHES = [(4, 2), (8, 1)]
ODD_MESHES = [(1, 3), (5, 1), (1, 6)]
ODD = ("ring", "halving_doubling", "s_caffe_cb")
EVERYWHERE = [
    *(
        pytest.param(name, shape, marks=[pytest.mark.slow] * (shape == (7, 1) and name not in ODD))
        for name in REDUCERS
        for shape in MESHES
    ),
    *(pytest.param(name, shape, marks=[pytest.mark.slow] * (shape == (1, 6))) for name in ODD for shape in ODD_MESHES),
    *(pytest.param(name, shape, marks=pytest.mark.slow) for name in REDUCERS for shape in MORE_MESHES),
]


def _id(part):
    return part if isinstance(part, str) else "x".join(map(str, part))


on_every_mesh = pytest.mark.parametrize(("name", "shape"), EVERYWHERE, ids=_id)
exact_on_every_mesh = pytest.mark.parametrize(
    ("name", "shape"), [case for case in EVERYWHERE if getattr(case, "values", case)[0] in EXACT], ids=_id
)
every_reducer = pytest.mark.parametrize("case", REDUCERS.values(), ids=REDUCERS)


def grid(shape):
    return comm.make_mesh(shape[0], jax.devices()[: shape[0] * shape[1]])


class Pair(NamedTuple):
    left: np.ndarray
    right: None = None


def example(shape, seed=0, integers=False):
    """A tree of gradients per device, leading dims [hosts, devices], of every kind of node, also of size 0."""
    draw = np.random.RandomState(seed)

    def leaf(*size):
        values = draw.randint(-8, 9, (*shape, *size)) if integers else draw.standard_normal((*shape, *size))
        return values.astype(np.float32)

    tree = {"kernel": leaf(7, 5), "bias": leaf(5), "none": None, "tuple": (leaf(), leaf(0, 3)), "nothing": ()}
    return tree | {"pair": Pair([leaf(33)])}


@functools.cache
def compiled(name, shape):
    return laws.lowered(REDUCERS[name].reducer, grid(shape), example(shape), gather=True).compile()


def sums_of_every_device(name, shape, values):
    """Leaves lead with [hosts, devices]."""
    state = laws.stacked_state(REDUCERS[name].reducer, grid(shape), values)
    return jax.device_get(compiled(name, shape)(values, state))[0]


def total(values):
    return jax.tree.map(lambda v: v.astype(np.float64).sum((0, 1)), values)


def everywhere(values):
    return jax.tree.map(lambda v: np.broadcast_to(v.astype(np.float64).sum((0, 1)), v.shape), values)


def assert_close(got, want, tolerance):
    scale = max(1.0, *(float(np.abs(w).max(initial=0)) for w in jax.tree.leaves(want)))
    for path, leaf in jax.tree.leaves_with_path(got):
        wanted = dict(jax.tree.leaves_with_path(want))[path]
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=tolerance * scale, err_msg=str(path))


def assert_near(got, want, tolerance):
    """The error of all leaves together, beside their norm: that of a reducer that gives zeros is 1."""
    norm = lambda tree: float(np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(tree))))  # noqa: E731
    assert norm(jax.tree.map(np.subtract, got, want)) <= tolerance * norm(want)


@on_every_mesh
def test_equals_the_sum_over_all_devices(name, shape):  # L1, L4
    values, case = example(shape), REDUCERS[name]
    check = assert_near if case.lossy else assert_close
    check(sums_of_every_device(name, shape, values), everywhere(values), 0 if shape == (1, 1) else case.tolerance)


@exact_on_every_mesh
def test_exact_on_integers_held_in_floats(name, shape):  # L1
    values = example(shape, integers=True)
    assert_close(sums_of_every_device(name, shape, values), everywhere(values), 0)


@pytest.mark.parametrize("name", EXACT)
def test_linear(name):  # L2
    shape, tolerance = (2, 4), 4 * REDUCERS[name].tolerance
    x, y = example(shape, 1), example(shape, 2)
    mixed = sums_of_every_device(name, shape, jax.tree.map(lambda a, b: 2 * a - 0.5 * b, x, y))
    sum_x, sum_y = (sums_of_every_device(name, shape, values) for values in (x, y))
    assert_close(mixed, jax.tree.map(lambda a, b: 2 * a - 0.5 * b, sum_x, sum_y), tolerance)


@on_every_mesh
def test_every_device_ends_with_the_same_bits_and_so_does_a_second_run(name, shape):  # L3, L9
    values = example(shape)
    # Zeros of both signs too: they are equal, and their bits are not.
    (long,) = values["pair"].left
    values["pair"] = Pair([np.where(long > 0, np.float32(-0.0), long)])
    values["bias"] = np.full_like(values["bias"], -0.0)
    first, second = (jax.tree.leaves(sums_of_every_device(name, shape, values)) for _ in range(2))
    for leaf, again in zip(first, second, strict=True):
        bits = leaf.view(np.int32).reshape(shape[0] * shape[1], -1)
        assert (bits == bits[:1]).all()
        assert (leaf.view(np.int32) == again.view(np.int32)).all()


@pytest.mark.parametrize("name", LIFTS)
@settings(max_examples=8)
@given(tree=trees())
def test_any_tree_of_gradients(name, tree: Trees):  # L1 and L5 together
    assert_exact_on(tree, name)


@pytest.mark.parametrize("name", sorted({*EXACT} - {*LIFTS}))
@settings(max_examples=3)  # its lengths of messages: trees are cut as by those above
@given(tree=trees())
def test_any_tree_in_the_buckets_of_an_algorithm(name, tree: Trees):  # L1 and L5 together
    assert_exact_on(tree, name)


def assert_exact_on(tree, name):
    values = tree.values((2, 2))
    got, _ = run_reducer(REDUCERS[name].reducer, grid((2, 2)), values)
    assert jax.tree.structure(got) == jax.tree.structure(values)
    for leaf, value in zip(jax.tree.leaves(got), jax.tree.leaves(values), strict=True):
        assert leaf.dtype == value.dtype
        assert leaf.shape == value.shape[2:]
    assert_close(got, total(values), 0)


@on_every_mesh
def test_compiled_collectives_are_the_planned_ones(name, shape):  # L6
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), example(shape))
    mesh = grid(shape)
    wanted = REDUCERS[name].reducer.plan(shapes, mesh.shape).collectives
    planned = comm.as_sent(wanted, "cpu")
    check = comm.verify(compiled(name, shape).as_text(), planned, mesh.shape)
    if planned != wanted:
        assert "float32" in comm.verify(compiled(name, shape).as_text(), wanted, mesh.shape).explain()
    assert check.ok, check.explain()
    assert not check.extra, check.extra
    assert not check.recoded, check.recoded
    assert (len(planned) == 0) == (shape == (1, 1))


@pytest.mark.parametrize("name", REDUCERS)
def test_the_text_evaluates_to_the_same_reducer(name):
    reducer, sizes = REDUCERS[name].reducer, {"host": 2, "device": 4}
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), example((2, 4)))
    again = eval(repr(reducer), vars(comm) | globals())
    assert repr(again) == repr(reducer)
    assert again.plan(shapes, sizes) == reducer.plan(shapes, sizes)


@pytest.mark.parametrize("name", REDUCERS)
def test_state_type_is_kept_and_nothing_recompiles(name):  # L8
    reducer, shape = REDUCERS[name].reducer, (2, 4)
    mesh, values = grid(shape), example(shape)
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[2:], v.dtype), values)
    abstract = jax.eval_shape(lambda: reducer.init(shapes, mesh.shape))
    state = jax.device_put(laws.stacked_state(reducer, mesh, values), comm.one_per_device(mesh))
    for _ in range(2):  # a compiled program takes what it was compiled for, and nothing that lies elsewhere
        _, state = compiled(name, shape)(values, state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))  # `jit` would trace again
    after = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[2:], s.dtype), state)
    assert jax.tree.structure(after) == jax.tree.structure(abstract)
    assert jax.tree.leaves(after) == jax.tree.leaves(abstract)


@every_reducer
def test_the_derivative_is_that_of_the_sum_or_refused_by_name(case):
    """Every device gets the cotangent of the sum: here that of the half of its square, so that it is the sum."""
    shape, reducer = (2, 3), case.reducer
    mesh, values = grid(shape), example(shape)

    def gradient(values, state):
        mine, state = jax.tree.map(lambda leaf: leaf[0, 0], (values, state))
        half_square = lambda tree: sum(jnp.vdot(leaf, leaf) / 2 for leaf in jax.tree.leaves(tree))  # noqa: E731
        result = jax.grad(lambda mine: half_square(reducer.reduce(mine, state)[0]))(mine)
        return jax.tree.map(lambda leaf: leaf[None, None], result)

    place = laws.PER_DEVICE
    mapped = jax.jit(jax.shard_map(gradient, mesh=mesh, in_specs=(place, place), out_specs=place))
    if case.lossy or "compressed" in repr(reducer):
        with pytest.raises(TypeError, match=r"(compressed|compressed_scattered|powersgd)\(\.\.\.\) has no derivative"):
            mapped(values, laws.stacked_state(reducer, mesh, values))
    else:
        got = jax.device_get(mapped(values, laws.stacked_state(reducer, mesh, values)))
        assert_close(got, everywhere(values), 2 * case.tolerance)


@every_reducer
def test_leaves_of_as_many_elements_travel_alike_unless_by_shape(case):
    kernels = {"dense": jax.ShapeDtypeStruct((24, 18), "float32"), "conv": jax.ShapeDtypeStruct((3, 3, 8), "float32")}
    flat = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.size,), leaf.dtype), kernels)
    axis_sizes = {"host": 2, "device": 4}
    plans = [case.reducer.plan(leaves, axis_sizes).collectives for leaves in (kernels, flat)]
    assert plans[0] == plans[1] or case.reducer.by_shape


@every_reducer
def test_a_gradient_that_is_already_summed_is_refused(case):
    mesh = grid((2, 4))

    def step(params, x):
        grads = jax.grad(lambda p: (p["w"] * x.sum()).sum() + p["v"].sum())(params)
        return case.reducer.reduce(grads, case.reducer.init(grads, mesh.shape))[0]

    wrong = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(comm.AXES)), out_specs=P()))
    with pytest.raises(TypeError, match=r"already the same on every device.*pcast"):
        wrong({"w": jnp.ones(3), "v": jnp.ones(2)}, jnp.ones(8))
