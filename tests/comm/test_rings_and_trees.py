"""Rings, halving and trees, compared with slow references in NumPy, and their plans with the formulas of their cost."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxnet import comm
from jaxnet.comm import (
    all_reduce,
    best_chunks,
    factored,
    halving_doubling,
    ring,
    rooted,
    scattered,
    wire_bytes_per_axis,
)
from jaxnet.comm.trees import binomial, chain, star

# References: what each place holds, message by message, in NumPy and in the order of the additions.


def ring_reference(x):
    """The sum of shard p begins at place p + 1 and grows at each place that it visits."""
    size = len(x)
    shards = np.split(x, size, axis=1)
    sums = []
    for p in range(size):
        total = shards[p][(p + 1) % size]
        for step in range(2, size + 1):
            total = total + shards[p][(p + step) % size]
        sums.append(total)
    return np.concatenate(sums)


def halving_reference(x):
    """Every place holds all shards; in each round it gives away those that are far ahead of it."""
    size = len(x)
    held = [dict(enumerate(np.split(row, size))) for row in x]
    while len(held[0]) > 1:
        distance = -(-len(held[0]) // 2)
        away = [
            {p: v for p, v in shards.items() if (p - place) % size >= distance} for place, shards in enumerate(held)
        ]
        for place in range(size):
            for p in away[place]:
                del held[place][p]
        for place in range(size):
            for p, v in away[(place - distance) % size].items():
                held[place][p] = held[place][p] + v
    return np.concatenate([held[p][p] for p in range(size)])


def binomial_reference(x):
    """Places far apart by d, 2d, 4d, ... give what they have to the one d before."""
    has, d = list(x), 1
    while d < len(has):
        for place in range(0, len(has) - d, 2 * d):
            has[place] = has[place] + has[place + d]
        d *= 2
    return has[0]


def chain_reference(x):
    return functools.reduce(lambda total, own: own + total, x[::-1])


def star_reference(x):
    return functools.reduce(lambda total, more: total + more, x)


REFERENCES = {
    "ring": (ring, ring_reference),
    "halving_doubling": (halving_doubling, halving_reference),
    "binomial": (rooted, binomial_reference),
    "chain": (functools.partial(rooted, tree="chain"), chain_reference),
    "chunked_chain": (functools.partial(rooted, tree="chunked_chain", chunks=3), chain_reference),
    "star": (functools.partial(rooted, tree="star"), star_reference),
}


@functools.cache
def message_sum(name, size, length):
    reducer = REFERENCES[name][0]("device")
    one = jax.shard_map(
        lambda x: reducer.reduce(x[0], ())[0],
        mesh=comm.make_mesh(1, jax.devices()[:size]),
        in_specs=P("device"),
        out_specs=P(),
    )
    return jax.jit(one).lower(jax.ShapeDtypeStruct((size, length), "float32")).compile()


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=20)
@given(
    size=st.integers(2, 8),
    seed=st.integers(0, 2**16),
    spread=st.sampled_from([0, 3, 6]),
)
def test_adds_in_the_order_of_the_reference(name, size, seed, spread):
    draw = np.random.RandomState(seed)
    length = 6 * size
    x = draw.standard_normal((size, length)) * 10.0 ** draw.randint(-spread, spread + 1, (size, length))
    x = x.astype(np.float32)
    np.testing.assert_array_equal(message_sum(name, size, length)(x), REFERENCES[name][1](x))


# Costs: rounds and bytes are those of the formulas.


def log2_up(size):
    return int(np.ceil(np.log2(size)))


def permutes(reducer, size, elements):
    return reducer.plan(jax.ShapeDtypeStruct((elements,), "float32"), {"device": size}).collectives


@pytest.mark.parametrize(
    ("tree", "messages"),
    [("binomial", log2_up), ("chain", lambda size: min(size - 1, 2)), ("star", lambda size: size - 1)],
)
@pytest.mark.parametrize("size", range(2, 9))
def test_the_bytes_of_a_tree_are_those_of_its_busiest_device(tree, messages, size):
    """The root sends a message to each child; in a chain one between sends up and down."""
    sent = wire_bytes_per_axis(permutes(rooted("device", tree=tree), size, 100))
    assert sent == {"device": messages(size) * 400}


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("piece_bytes", [None, 64])
def test_ring_and_halving_send_the_fewest_bytes_and_all_devices_send(size, piece_bytes):
    elements = 840
    for make, rounds in ((ring, size - 1), (halving_doubling, log2_up(size))):
        sent = permutes(make("device", piece_bytes=piece_bytes), size, elements)
        assert sum(collective.wire_bytes for collective in sent) == 2 * (size - 1) * elements * 4 // size
        assert all({sender for sender, _ in collective.pairs} == set(range(size)) for collective in sent)
        if piece_bytes is None:
            assert len(sent) == 2 * rounds
        else:
            assert all(collective.bytes <= piece_bytes for collective in sent)


@given(size=st.integers(2, 40), chunks=st.integers(1, 20))
def test_trees_take_the_rounds_of_the_formulas(size, chunks):
    assert len(binomial(size)) == log2_up(size)
    assert len(chain(size)) == len(star(size)) == size - 1
    assert len(chain(size, chunks)) == chunks + size - 2
    for rounds in (binomial(size), chain(size), chain(size, chunks), star(size)):
        for edges in rounds:
            assert edges
            assert len({edge.sender for edge in edges}) == len({edge.receiver for edge in edges}) == len(edges)


@given(size=st.integers(2, 40), chunks=st.integers(1, 20))
def test_trees_give_every_chunk_of_every_place_to_the_root_once(size, chunks):
    for rounds, count in ((binomial(size), 1), (star(size), 1), (chain(size, chunks), chunks)):
        holds = {(place, chunk): [place] for place in range(size) for chunk in range(count)}
        for edges in rounds:
            sent = [(edge, list(holds[edge.sender, edge.chunk])) for edge in edges]
            for edge, places in sent:
                holds[edge.receiver, edge.chunk] += places
        assert all(sorted(holds[0, chunk]) == list(range(size)) for chunk in range(count))


@given(
    size=st.integers(2, 32),
    nbytes=st.integers(1, 2**20),
    latency=st.floats(1e-6, 1e-3),
    rate=st.floats(1e7, 1e9),
)
def test_the_best_number_of_chunks_is_the_best(size, nbytes, latency, rate):
    times = [(k + size - 2) * (latency + nbytes / k / rate) for k in range(1, 3000)]
    chosen = best_chunks(size, nbytes, latency, 1 / rate)
    if chosen < len(times):
        assert times[chosen - 1] <= min(times) * (1 + 1e-12)


def test_the_inner_of_a_tree_sends_from_roots_alone():
    spec = jax.ShapeDtypeStruct((12,), "float32")
    plan = rooted("device", rooted("host"), tree="chunked_chain", chunks=3).plan(spec, {"host": 4, "device": 2})
    across = [collective for collective in plan.collectives if "host" in collective.axes]
    assert [collective.pairs for collective in across[:2]] == [((2, 0), (6, 4)), ((4, 0),)]
    assert len(across) == 4


def test_groups_of_an_axis_are_neighbours_and_then_across_them():
    spec = jax.ShapeDtypeStruct((8,), "float32")
    reducer = factored("device", (4,), lambda near, far: scattered(near, scattered(far, all_reduce())))
    near, far = reducer.plan(spec, {"device": 8}).collectives[:2]
    assert near.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert far.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert (near.elements, far.elements) == (8, 2)


@pytest.mark.parametrize(("size", "groups"), [(8, 4), (6, 3), (4, 4), (7, 1), (2, 2), (1, 1)])
def test_a_factor_is_the_largest_that_divides(size, groups):
    spec = jax.ShapeDtypeStruct((840,), "float32")
    plan = factored("device", (4,), lambda near, far: ring(near, ring(far))).plan(spec, {"device": size})
    assert len(plan.collectives) == 2 * (groups - 1) + 2 * (size // groups - 1)
    assert plan.multiple == size
