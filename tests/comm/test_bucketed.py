"""When a bucket starts: groups, the bound on buckets in flight, and where XLA:CPU places each."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import all_reduce, bucketed, collectives_in, grouped, scattered
from jaxnet.comm.order import merge_by_cost
from support.laws import lowered, run_reducer

FLAT = all_reduce(*comm.AXES)
LAYERS, WIDTH = 4, 64
LAYER_BYTES = WIDTH * WIDTH * 4
PRODUCTS = 3 * LAYERS - 1  # in forward and backward


def whole(sizes):
    return [range(len(sizes))]


def backwards_one_by_one(sizes):
    return [[leaf] for leaf in reversed(range(len(sizes)))]


def merged(sizes):
    return merge_by_cost(np.cumsum(sizes), sizes, alpha=30, beta=0.5)


REDUCERS = {
    "grouped": grouped(FLAT, whole),
    "grouped_in_another_order": grouped(scattered("device", all_reduce("host")), backwards_one_by_one),
    "merged": grouped(FLAT, merged),
    "one_in_flight": bucketed(FLAT, 16, in_flight=1),
    "two_in_flight": bucketed(scattered("device", all_reduce("host")), 16, in_flight=2),
}


def deep_network():
    shapes = {f"layer_{i}": jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32") for i in range(LAYERS)}

    def loss(params, x):
        for i in range(LAYERS):
            x = jnp.tanh(x @ params[f"layer_{i}"])
        return (x**2).mean()

    return loss, shapes, jax.ShapeDtypeStruct((64, WIDTH), "float32")


def compiled(reducer):
    """A deep network's step as optimized HLO; every layer is as large as LAYER_BYTES."""
    loss, shapes, x = deep_network()
    mesh = comm.make_mesh(2, jax.devices()[:8])
    reducer = comm.in_order(comm.backward_order(jax.grad(loss), shapes, x), reducer)

    def step(params, x):
        varying = jax.tree.map(lambda p: lax.pcast(p, comm.AXES, to="varying"), params)
        grads = jax.grad(loss)(varying, x)
        sums, _ = reducer.reduce(grads, reducer.init(grads, mesh.shape))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, sums)

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(comm.AXES)), out_specs=P())
    return jax.jit(mapped, compiler_options=comm.compiler_options("cpu")).lower(shapes, x).compile().as_text()


def starts(hlo):
    """Matrix products scheduled before each collective."""
    return np.cumsum([found.compute_before for found in collectives_in(hlo)]).tolist()


def depends(hlo, later, earlier):
    """Whether instruction `later` takes in, through others, what `earlier` gives out."""
    operands = {}
    for line in hlo[hlo.index("ENTRY") :].splitlines():
        if match := re.match(r"\s*(?:ROOT )?%(\S+) = (.*)", line):
            operands[match[1]] = set(re.findall(r"%([\w.\-]+)", match[2]))
    reached, open_names = set(), {later}
    while open_names:
        name = open_names.pop()
        reached.add(name)
        open_names |= operands.get(name, set()) - reached
    return earlier in reached


@pytest.mark.parametrize("reducer", REDUCERS.values(), ids=REDUCERS)
def test_sums_are_exact_and_the_same_everywhere(reducer):
    mesh = comm.make_mesh(2, jax.devices()[:8])
    draw = np.random.RandomState(0)
    shapes = {"a": (7, 5), "b": (), "c": (0, 3), "d": (4,), "e": (3, 2)}
    values = {name: draw.randint(-8, 9, (2, 4, *shape)).astype(np.float32) for name, shape in shapes.items()}
    values["b"] = values["b"].astype(np.float16)
    sums, _ = run_reducer(reducer, mesh, values, gather=True)
    for name, value in values.items():
        assert sums[name].dtype == value.dtype
        np.testing.assert_array_equal(sums[name], np.broadcast_to(value.sum((0, 1)), value.shape))


@pytest.mark.parametrize("groups", [[[0], [0, 1]], [[0]], [[0, 1, 2]]])
def test_groups_that_are_no_partition_are_refused(groups):
    leaves = [jax.ShapeDtypeStruct((3,), "float32")] * 2
    with pytest.raises(ValueError, match="each of the 2 leaves once"):
        grouped(FLAT, lambda sizes: groups).plan(leaves, {"host": 2, "device": 4})


def test_a_bound_below_one_is_refused():
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        bucketed(FLAT, None, in_flight=0)


def test_a_layer_that_is_a_bucket_starts_under_the_products_of_the_next():
    """Ready after 6, 8, 10 and 11 products: each but the last two leaves time for the next layer's to be there."""
    assert starts(compiled(bucketed(FLAT, LAYER_BYTES))) == [8, 10, 11, 11]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_buckets_travel_at_once_than_the_bound(limit):
    hlo = compiled(bucketed(FLAT, LAYER_BYTES, in_flight=limit))
    names = [found.name for found in collectives_in(hlo)]
    assert len(names) == LAYERS
    for index, name in enumerate(names):
        waits_for = [depends(hlo, name, earlier) for earlier in names[:index]]
        assert waits_for == [(index - other) % limit == 0 for other in range(index)]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_bound_leaves_the_first_buckets_during_backward(limit):
    begun = [start for start in starts(compiled(bucketed(FLAT, LAYER_BYTES, in_flight=limit))) if start < PRODUCTS]
    assert len(begun) >= min(limit, LAYERS - 2)
    assert begun[0] == LAYERS + 4


def test_gradients_on_their_way_keep_their_memory_until_all_have_been_sent():
    hlo = compiled(comm.during(bucketed(FLAT, LAYER_BYTES)))
    [held] = re.findall(r" = \((.*)\) opt-barrier\(", hlo)
    assert len(re.findall(rf"f32\[{WIDTH},{WIDTH}\]", held)) == 2 * LAYERS
    assert " opt-barrier(" not in compiled(bucketed(FLAT, LAYER_BYTES))


@pytest.mark.parametrize("name", ["ddp", "hierarchical", "flat", "caffe2", "mg_wfbp", "fp16", "int8"])
def test_on_one_device_nothing_is_packed_or_held(name):
    """Each would copy every gradient, for nobody."""
    reducer = comm.scheduled(comm.named_strategy(name))
    values = {name: np.ones((1, 1, *shape), np.float32) for name, shape in (("a", (3, 5)), ("b", (7,)), ("c", (2, 2)))}
    text = lowered(reducer, comm.make_mesh(1, jax.devices()[:1]), values).as_text()
    assert "concatenate" not in text
    assert "optimization_barrier" not in text
    assert "optimization_barrier" in lowered(reducer, comm.make_mesh(1, jax.devices()[:2]), _twice(values)).as_text()


def _twice(values):
    return jax.tree.map(lambda value: np.concatenate([value, value], axis=1), values)


def broken(reduce):
    return bucketed(FLAT._replace(reduce=reduce), 64)


WRONG = {
    "one value": (lambda message, state: FLAT.reduce(message, state)[0], "reduce gave one array; wanted two values"),
    "nothing": (lambda message, state: None, "reduce gave a NoneType; wanted two values"),
    "short": (
        lambda message, state: FLAT.reduce(message[1:], state),
        r"total is float32\[15\] for a message of float32\[16\]",
    ),
    "another dtype": (
        lambda message, state: (FLAT.reduce(message, state)[0].astype("float16"), state),
        r"the total is float16\[16\] for a message of float32\[16\]",
    ),
    "a tree": (lambda message, state: ([message], state), "the total is a list"),
    "not the same": (
        lambda message, state: (lax.all_gather(message, comm.AXES).sum(0), state),
        r"differs between devices along mesh axis 'host', over which its plan sums.*to='invarying'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_reducer_of_a_message_must_give(case):
    reduce, words = WRONG[case]
    mesh = comm.make_mesh(2, jax.devices()[:8])
    with pytest.raises((TypeError, ValueError), match=words):
        run_reducer(broken(reduce), mesh, [np.ones((2, 4, 16), np.float32)])
