"""Draws: a function of (seed, position), spread over all of 64 bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.data.batches import draws, mix_bits

seeds = st.integers(0, 2**64 - 1)


def splitmix(state: int) -> int:
    """The same in plain integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@given(seed=seeds, start=st.integers(0, 2**60), count=st.integers(0, 20))
def test_draws_are_those_of_plain_integers(seed, start, count):
    golden = 0x9E3779B97F4A7C15
    state = splitmix((seed + golden) % 2**64)
    expected = [splitmix((state + position * golden) % 2**64) for position in range(start, start + count)]
    got = draws(seed, start, start + count)
    assert got.dtype == np.uint64
    assert got.tolist() == expected


@given(number=seeds)
def test_mixing_is_that_of_plain_integers(number):
    assert mix_bits(number) == splitmix((number + 0x9E3779B97F4A7C15) % 2**64)


def test_every_bit_is_set_half_of_the_time_and_seeds_differ():
    for seed in (0, 1):
        bits = np.unpackbits(draws(seed, 0, 4096).view(np.uint8)).reshape(-1, 64)
        assert abs(bits.mean(0) - 0.5).max() < 0.05
    assert len(np.unique(np.concatenate([draws(seed, 0, 1000) for seed in range(20)]))) == 20_000
