"""The order of examples is a function of (seed, position)."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.data import example_ids, permutation

SEEDS = st.integers(0, 2**64 - 1)


def stream(seed: int, num_examples: int, stop: int) -> list[int]:
    """The first `stop` positions, the plain way."""
    epochs = range(stop // num_examples + 1)
    return [int(row) for epoch in epochs for row in permutation(seed, epoch, num_examples)][:stop]


@given(SEEDS, st.integers(0, 2**40), st.integers(1, 200))
def test_an_epoch_holds_every_example_once(seed, epoch, num_examples):
    assert sorted(permutation(seed, epoch, num_examples)) == list(range(num_examples))


@given(SEEDS, st.integers(1, 30), st.integers(0, 100), st.integers(0, 100))
def test_positions_read_alone_are_those_of_the_whole_stream(seed, num_examples, start, length):
    ids = example_ids(seed, num_examples, start, start + length) if length else np.array([], np.int32)
    assert ids.dtype == np.int32
    assert ids.tolist() == stream(seed, num_examples, start + length)[start:]


@given(SEEDS, st.integers(0, 2**40))
def test_seeds_and_epochs_have_orders_of_their_own(seed, epoch):
    here = permutation(seed, epoch, 1000)
    assert not np.array_equal(here, permutation(seed, epoch + 1, 1000))
    assert not np.array_equal(here, permutation(seed ^ 1, epoch, 1000))
    assert not np.array_equal(here, permutation(seed ^ 2**32, epoch, 1000))


def test_the_order_never_changes():
    """A change here breaks the resume of every run that was begun before it."""
    assert permutation(0, 0, 8).tolist() == [7, 2, 4, 0, 5, 3, 1, 6]
    assert permutation(0, 1, 8).tolist() == [3, 4, 2, 1, 0, 6, 7, 5]
    assert permutation(1, 0, 8).tolist() == [5, 2, 1, 6, 4, 0, 3, 7]
    assert permutation(2**40 + 1, 2**33, 8).tolist() == [0, 3, 4, 2, 6, 7, 1, 5]
    digest = hashlib.sha256(permutation(0, 0, 60_000).astype("<i4").tobytes()).hexdigest()
    assert digest == "9b209a5f609d9ca0db03adbf02ba6251d07006a63afd06c31b1fe4f624e5e75d"


def test_a_permutation_cannot_be_changed_by_its_reader():
    assert not permutation(0, 0, 8).flags.writeable
