"""Devices that should hold the same state and do not are named, with what differs."""

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet import comm
from jaxnet.comm.strategies import local_sgd
from jaxnet.parallel import form_of
from jaxnet.parallel.replicas import Replicas, described, leaf_hash
from jaxnet.parallel.state import TrainState
from support import poison
from support.ranks import Ranks

DTYPES = ["float32", "float16", "bool", "int8", "uint32"]


def planted(array, device, change):
    """`array` with `change` made to the copy of one device."""
    copies = [np.array(shard.data) for shard in array.addressable_shards]
    copies[device] = change(copies[device])
    parts = [jax.device_put(copy, shard.device) for copy, shard in zip(copies, array.addressable_shards, strict=True)]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def flipped(copy, bit=0):
    """The array with the lowest bit of its last element changed."""
    bits = copy.reshape(-1).view(np.uint32)
    bits[-1] ^= 1 << bit
    return copy


def swapped(copy):
    """Its first two elements exchanged."""
    flat = copy.reshape(-1)
    flat[[0, 1]] = flat[[1, 0]]
    return copy


def slow_hash(array):
    """The same by Python's own integers."""
    total = 0
    flat = array.reshape(-1)
    for place, word in enumerate(flat.view(f"uint{8 * flat.dtype.itemsize}").tolist()):
        word = (word + place * 0x9E3779B9) % 2**32
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            word = (word ^ (word >> shift)) * factor % 2**32
        total += word ^ (word >> 16)
    return total % 2**32


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hash_is_what_its_formula_says(dtype):
    array = np.random.RandomState(0).randint(0, 2 if dtype == "bool" else 100, (5, 7)).astype(dtype)
    assert int(jax.jit(leaf_hash)(array)) == slow_hash(array)


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=2, max_size=6), st.data())
def test_a_hash_changes_with_any_bit_and_with_any_exchange(values, data):
    array, hashed = np.array(values + [0.0] * (6 - len(values)), np.float32), jax.jit(leaf_hash)
    place, bit = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 31))
    other = array.copy()
    other.view(np.uint32)[place] ^= np.uint32(1 << bit)
    assert int(hashed(array)) != int(hashed(other))
    exchanged = array.copy()
    exchanged[[0, 1]] = array[[1, 0]]
    same = array.view(np.uint32)[0] == array.view(np.uint32)[1]
    assert (int(hashed(array)) == int(hashed(exchanged))) == same


@pytest.mark.parametrize("change", [flipped, swapped])
@pytest.mark.parametrize("field", ["params", "stats", "optimizer"])
def test_a_difference_planted_in_one_copy_is_found(field, change):
    made = poison.setup(shape=(2, 4))
    state, _ = made.step(made.state, poison.batch(made, 0))
    replicas = Replicas(made.layout)
    assert replicas.difference(state) is None
    leaves, tree = jax.tree.flatten(getattr(state, field))
    largest = max(range(len(leaves)), key=lambda index: leaves[index].size)
    leaves[largest] = planted(leaves[largest], 5, change)
    words = replicas.difference(state._replace(**{field: jax.tree.unflatten(tree, leaves)}))
    assert words.startswith(f"device 5 of rank 0 differs from the 7 others in {field}/")


def test_parts_and_what_reducers_remember_are_a_devices_own():
    made = poison.setup("zero", (1, 4))
    state, _ = made.step(made.state, poison.batch(made, 0))
    assert Replicas(made.layout).difference(state) is None
    bad = state._replace(stats=jax.tree.map(lambda leaf: planted(leaf, 2, flipped), state.stats))
    assert "device 2 of rank 0 differs from the 3 others in stats/mean" in Replicas(made.layout).difference(bad)
    coded = poison.setup("int8", (1, 4))
    state, _ = coded.step(coded.state, poison.batch(coded, 0))
    assert Replicas(coded.layout).difference(state) is None


def test_copies_are_compared_where_a_round_ends():
    made = poison.setup(local_sgd(2), (1, 4))
    state, _ = made.step(made.state, poison.batch(made, 0))
    assert "differ" in Replicas(made.layout).difference(state)  # within a round they do
    state, _ = made.step(state, poison.batch(made, 1))
    assert Replicas(made.layout).difference(state) is None
    state = state._replace(params={**state.params, "bias": planted(state.params["bias"], 1, flipped)})
    assert Replicas(made.layout).difference(state) == "device 1 of rank 0 differs from the 3 others in params/bias"


def test_one_device_has_nothing_to_compare():
    made = poison.setup(shape=(1, 1))
    assert Replicas(made.layout).difference(made.state) is None


def test_ranks_of_mpi_are_compared_by_what_they_tell_each_other():
    made = poison.setup("flat", (1, 2))
    told = lambda own: [own, [[value + (row == 1) for value in hashes] for row, hashes in enumerate(own)]]  # noqa: E731
    words = Replicas(made.layout, ranks=2, gathered=told).difference(made.state)
    assert words.startswith("device 1 of rank 1 differs from the 3 others in step and ")


def test_of_two_none_can_be_told_to_be_right():
    words = described(np.array([[1, 2], [1, 3]]), ["a", "b"], ["device 0 of rank 0", "device 0 of rank 1"])
    assert words == (
        "device 0 of rank 1 differs from device 0 of rank 0 in b, and no majority tells which of them are wrong"
    )


# ---- Across processes ---------------------------------------------------------------------------------------


def told(rank, wrong):
    """What each of two processes says of a kernel that differs on rank `wrong`."""
    mesh = comm.make_mesh()
    params = {"bias": np.zeros(2, np.float32), "kernel": np.arange(6, dtype=np.float32)}
    if rank == int(wrong):
        params["kernel"][3] += 1e-6
    own = TrainState(np.int32(0), params, {}, (), (), None, np.zeros(2, np.uint32))
    layout = form_of(comm.named_strategy("flat"), mesh).layout(jax.eval_shape(lambda: own), optax.sgd(0.1))
    shared = comm.replicated(mesh)
    state = jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, shared, lambda at: leaf[at]), own)
    return Replicas(layout).difference(state)


@pytest.mark.processes
def test_one_process_of_two_that_differs_is_named_by_both():
    with Ranks(told, 2, "1", devices=1) as ranks:
        words = ranks.results()
    assert (
        words
        == [
            "device 0 of rank 1 differs from device 0 of rank 0 in params/kernel, and no majority tells which of them "
            "are wrong"
        ]
        * 2
    )
