"""Launching from two threads, on one device; with several processes in tests/processes/test_pieces_processes.py."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnet import comm
from jaxnet.comm import Message, lower_launch, messages_of

SPEC = jax.ShapeDtypeStruct((4,), "float32")


def counting():
    """A reducer that gives twice its message, and counts the calls."""

    def reduce(message, state):
        total, _ = comm.all_reduce(*comm.AXES).reduce(message, ())
        return 2 * total, state + 1

    return comm.all_reduce(*comm.AXES)._replace(init=lambda spec, sizes: jnp.zeros((), jnp.int32), reduce=reduce)


@pytest.fixture
def mesh():
    return comm.make_mesh(1, jax.devices()[:1])


def states(mesh, count):
    return [jax.device_put(np.zeros((1, 1), np.int32), comm.one_per_device(mesh)) for _ in range(count)]


def function(x):
    y = x + 1
    return [y, jnp.sin(y), x]


@pytest.mark.parametrize("at_once", [False, True])
def test_messages_are_summed_and_states_carried(mesh, at_once):
    launch = lower_launch(
        function, [SPEC], [Message(counting(), SPEC)] * 3, mesh, groups=[[0, 1, 2]] if at_once else None
    ).compile()
    x, carried = jnp.arange(4.0), states(mesh, 3)
    for calls in (1, 2):
        before = carried
        sums, carried = launch([x], before)
        for total, message in zip(sums, function(x), strict=True):
            np.testing.assert_allclose(total, 2 * message, rtol=1e-6)
        assert [int(state[0, 0]) for state in carried] == [calls] * 3
        assert all(state.is_deleted() for state in before)


def test_after_an_error_no_more_is_launched(mesh):
    launch = lower_launch(function, [SPEC], [Message(counting(), SPEC)] * 3, mesh).compile()
    first, _, last = states(mesh, 3)
    with pytest.raises(TypeError):
        launch([jnp.arange(4.0)], [first, "not a state", last])
    assert first.is_deleted()
    assert not last.is_deleted()
    sums, _ = launch([jnp.arange(4.0)], states(mesh, 3))
    assert len(sums) == 3


def test_after_an_error_no_more_is_computed(mesh, monkeypatch):
    """The second piece is slow, and the first sum fails meanwhile: the third is not launched."""
    chain = lambda x: [jnp.sin(x), jnp.sin(jnp.sin(x)), jnp.sin(jnp.sin(jnp.sin(x)))]  # noqa: E731
    launch = lower_launch(chain, [SPEC], [Message(counting(), SPEC)] * 3, mesh).compile()
    launched = []

    def slow(piece, program):
        def run(*values):
            launched.append(piece)
            time.sleep(0.5)
            return program(*values)

        return run

    monkeypatch.setattr(launch, "pieces", [each._replace(program=slow(*each[:2])) for each in launch.pieces])
    with pytest.raises(TypeError):
        launch([jnp.arange(4.0)], ["not a state", *states(mesh, 2)])
    assert len(launched) < 3 == len(launch.pieces)


def test_several_devices_a_process_are_refused():
    with pytest.raises(ValueError, match="wanted one device of each process on the mesh, got 2"):
        lower_launch(function, [SPEC], [Message(counting(), SPEC)] * 3, comm.make_mesh(1, jax.devices()[:2]))


def test_a_tree_as_messages_and_back():
    """Buckets of 16 bytes, that cut leaves, in another order than the tree's."""
    values = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.arange(3), "c": jnp.arange(2.0)}
    reducer = comm.bucketed(comm.all_reduce(*comm.AXES), 16)
    messages = messages_of(reducer, values, {"host": 2, "device": 1}, order=(2, 0, 1))
    packed = messages.pack(values)
    assert [jax.typeof(message).str_short() for message in packed] == [
        jax.typeof(jnp.zeros(spec.shape, spec.dtype)).str_short() for spec in messages.specs
    ]
    assert float(packed[0][1]) == 1.0  # "c" comes first
    for got, want in zip(jax.tree.leaves(messages.unpack(packed)), jax.tree.leaves(values), strict=True):
        np.testing.assert_array_equal(got, want)


def test_messages_of_a_reducer_with_an_order_of_its_own():
    values = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.arange(3), "c": jnp.arange(2.0)}
    own = comm.in_order((2, 1, 0), comm.bucketed(comm.all_reduce(*comm.AXES), 16))
    for order, first in [(None, 1.0), ((2, 0, 1), 1)]:  # "c", and "b", which is last in that order
        messages = messages_of(own, values, {"host": 2, "device": 1}, order)
        packed = messages.pack(values)
        assert packed[0][1] == first
        assert [message.shape for message in packed] == [spec.shape for spec in messages.specs]
        for got, want in zip(jax.tree.leaves(messages.unpack(packed)), jax.tree.leaves(values), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("ordered", [comm.in_order, comm.shards_in_order])
def test_a_plan_numbers_leaves_as_the_tree_does(ordered):
    spec = {name: jax.ShapeDtypeStruct((size,), "float32") for name, size in [("a", 6), ("b", 2)]}
    inner = {
        comm.in_order: comm.bucketed(comm.all_reduce("host"), 8),
        comm.shards_in_order: comm.sharded("host", bucket_bytes=8),
    }[ordered]
    buckets = ordered((1, 0), inner).plan(spec, {"host": 2}).buckets
    assert buckets.buckets[0].pieces[0].leaf == 1
    assert buckets.shapes == inner.plan(spec, {"host": 2}).buckets.shapes


def test_a_reducer_whose_messages_depend_on_each_other():
    reducer = comm.powersgd(1, comm.bucketed(comm.all_reduce(), None), factors=comm.all_reduce())
    with pytest.raises(ValueError, match="does not sum its messages one by one"):
        messages_of(reducer, [SPEC], {"host": 2, "device": 1})


def test_sums_of_another_function_are_not_those_of_the_messages():
    """A wrapper of one's own around a whole tree: a program that sums messages would leave out what it does."""
    inner = comm.bucketed(comm.all_reduce(*comm.AXES), 1024)
    assert inner.message is not None
    halved = inner._replace(reduce=lambda grads, state: inner.reduce(jax.tree.map(lambda x: x / 2, grads), state))
    for reducer in (
        halved,
        comm.during(halved),
        comm.after(halved),
        comm.in_order([0], halved),
        comm.pipelined(halved),
    ):
        assert reducer.message is None
        with pytest.raises(ValueError, match="does not sum its messages one by one"):
            messages_of(reducer, [SPEC], {"host": 2, "device": 1})
    for reducer in (comm.during(inner), comm.after(inner), comm.in_order([0], inner), comm.pipelined(inner)):
        assert reducer.message is not None


def test_what_a_program_computes_counts_for_the_sum_that_follows():
    """Two products before the first all-reduce, one before the second, none before the third."""
    mesh, square = comm.make_mesh(2), jax.ShapeDtypeStruct((8, 8), "float32")

    def text(function):
        return jax.jit(function).lower(square).compile().as_text()

    everywhere = jax.sharding.PartitionSpec()
    total = text(
        jax.shard_map(lambda x: jax.lax.psum(x, comm.AXES), mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    )
    two, one = text(lambda x: jnp.tanh(x @ x) @ x), text(lambda x: x @ x)
    found = comm.verify("\n".join([two, total, one, total, total]), [], mesh.shape).found
    assert [one.compute_before for one in found] == [2, 1, 0]


def test_what_is_timed_alone_and_beside(mesh):
    launch = lower_launch(function, [SPEC], [Message(counting(), SPEC)] * 3, mesh).compile()
    kept = states(mesh, 3)
    of_pieces, of_sums, share = launch.timed([jnp.arange(4.0)], kept)
    assert (len(of_pieces), len(of_sums)) == (len(launch.pieces), 3)
    assert all(0 < seconds < 10 for seconds in (*of_pieces, *of_sums))
    assert 0 <= share < 1
    assert not any(state.is_deleted() for state in kept)
