"""Reducers, shards, codecs and groupings print as the expression that makes them, and it evaluates back."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm import (
    STRATEGIES,
    KiB,
    MiB,
    after,
    all_reduce,
    bucketed,
    cast,
    codecs,
    compressed_scattered,
    during,
    grouped,
    in_order,
    merged_by_cost,
    powersgd,
    ring,
    rooted,
    scattered,
    sharded,
)

SIZES = {"host": 2, "device": 4}
SHAPES = {
    "kernel": jax.ShapeDtypeStruct((30, 20), "float32"),
    "bias": jax.ShapeDtypeStruct((20,), "float32"),
    "deep": {"w": jax.ShapeDtypeStruct((7, 3), "float16")},
}


def evaluated(value):
    return eval(repr(value), vars(comm))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            during(bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB)),
            "during(bucketed(scattered('device', all_reduce('host')), 25 * MiB))",
        ),
        (
            bucketed(all_reduce(*comm.AXES), 1000, split=False, first_bucket_bytes=64 * KiB),
            "bucketed(all_reduce('host', 'device'), 1000, first_bucket_bytes=64 * KiB, split=False)",
        ),
        (bucketed(all_reduce(), None, in_flight=None), "bucketed(all_reduce(), None)"),
        (ring("host", inner=cast("float16", ring("device"))), "ring('host', cast('float16', ring('device')))"),
        (ring("host", piece_bytes=MiB), "ring('host', piece_bytes=1 * MiB)"),
        (rooted("host", tree="chain", chunks=8), "rooted('host', tree='chain')"),
        (
            compressed_scattered("host", codec=codecs.two_bit(0.5), sum_codec=codecs.float16),
            "compressed_scattered('host', codec=codecs.two_bit(0.5), sum_codec=codecs.float16)",
        ),
        (powersgd(2, all_reduce("host"), factors=all_reduce()), "powersgd(2, all_reduce('host'), all_reduce())"),
        (codecs.one_message(codecs.int8(1024)), "codecs.one_message(codecs.int8(1024))"),
        (codecs.top_k(np.float32(0.5)), "codecs.top_k(0.5)"),
        (
            merged_by_cost(alpha=1, beta=0.5, ready_seconds=[1, 2.5]),
            "merged_by_cost(alpha=1, beta=0.5, ready_seconds=[1, 2.5])",
        ),
        (
            comm.scatter_after(sharded("device", ("host",), bucket_bytes=None)),
            "scatter_after(sharded('device', ('host',), bucket_bytes=None))",
        ),
        (
            sharded(comm.ring_halves("device", piece_bytes=MiB), "host", bucket_bytes=MiB, split=False),
            "sharded(ring_halves('device', piece_bytes=1 * MiB), 'host', bucket_bytes=1 * MiB, split=False)",
        ),
        (comm.bracket(comm.xla_halves("host"), ring("device")), "bracket(xla_halves('host'), ring('device'))"),
        (comm.rooted_halves("host", tree="star"), "rooted_halves('host', tree='star')"),
        (
            comm.as_reducer(comm.shards_in_order((1, 0), sharded("host", bucket_bytes=8))),
            "as_reducer(shards_in_order((1, 0), sharded('host', bucket_bytes=8)))",
        ),
    ],
    ids=str,
)
def test_prints_as_the_expression_that_makes_it(value, text):
    assert repr(value) == text
    assert repr(evaluated(value)) == repr(value)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_reducer_of_every_strategy_evaluates_back(name):
    strategy = STRATEGIES[name]()
    for value in filter(None, (strategy.reducer, comm.scheduled(strategy, (2, 0, 1)))):
        again = evaluated(value)
        assert repr(again) == repr(value)
        assert again.plan(SHAPES, SIZES) == value.plan(SHAPES, SIZES)


def test_every_wrapper_that_replaces_a_function_has_a_text_of_its_own():
    inner = bucketed(all_reduce("host"), None)
    texts = [repr(wrapped) for wrapped in (inner, after(inner), during(inner), in_order((1, 0), inner))]
    text = "bucketed(all_reduce('host'), None)"
    assert texts == [text, f"after({text})", f"during({text})", f"in_order((1, 0), {text})"]


def longest_last(sizes):
    return [[leaf] for leaf in sorted(range(len(sizes)), key=sizes.__getitem__)]


def test_a_users_function_prints_by_its_name():
    reducer = grouped(all_reduce("host"), longest_last)
    assert repr(reducer) == "grouped(all_reduce('host'), longest_last)"
    again = eval(repr(reducer), vars(comm) | {"longest_last": longest_last})
    assert again.plan(SHAPES, SIZES) == reducer.plan(SHAPES, SIZES)
    assert "<lambda>" in repr(grouped(all_reduce("host"), lambda sizes: [[0]]))


def test_a_reducer_of_the_users_own_prints_where_it_was_made():
    def rounded(axis):
        return comm.Reducer(lambda *_: (), lambda message, state: (message, state), lambda *_: comm.Plan(()))

    assert repr(rounded("host")) == "<Reducer of test_a_reducer_of_the_users_own_prints_where_it_was_made>"
    assert repr(comm.expressed(rounded)("host")) == "rounded('host')"


def test_the_door_names_what_it_has_once():
    assert len(set(comm.__all__)) == len(comm.__all__)
    assert all(hasattr(comm, name) for name in comm.__all__)


@pytest.mark.parametrize("name", comm.STRATEGIES)
def test_what_a_strategy_prints_is_as_exact_as_it_is(name):
    strategy = comm.named_strategy(name)
    if strategy.reducer is not None:
        again = evaluated(replace(strategy, name=""))
        assert (again.exact, again.schedule, repr(again)) == (strategy.exact, strategy.schedule, repr(strategy))


def test_an_order_of_a_reducer_is_by_shape_as_that_is():
    assert comm.in_order((1, 0), powersgd(2, all_reduce("host"), factors=all_reduce("host"))).by_shape
    assert not comm.in_order((1, 0), all_reduce("host")).by_shape


def test_measured_times_are_printed_as_numbers():
    reducer = in_order(np.array([1, 0]), all_reduce())
    assert repr(reducer) == "in_order([1, 0], all_reduce())"
    times = np.array([0.0, 1.0])
    assert comm.STRATEGIES["mg_wfbp"](ready_seconds=times).reducer is not None


def test_a_strategy_is_kept_in_the_words_of_earlier_versions():
    """In config.json, with which a run that goes on is compared."""
    assert str(replace(comm.named_strategy("fp16"), name="")).endswith(", 25 * MiB))")
