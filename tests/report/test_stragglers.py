"""The straggler rule: median plus three MAD, and its limits where the MAD means nothing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.report.goodput import RankTimes, straggler_limit, stragglers, times_line

SECONDS = st.floats(0, 100, allow_subnormal=False)
RANKS = st.lists(SECONDS, min_size=3, max_size=40)


def named(seconds, step):
    return {each.rank for each in stragglers([RankTimes(rank, step, own) for rank, own in enumerate(seconds)])}


@given(RANKS, SECONDS)
def test_it_is_the_rule_beyond_what_matters(seconds, step):
    values = np.array(seconds)
    rule = np.median(values) + 3 * np.median(np.abs(values - np.median(values)))
    matters = values > np.median(values) + max(step, np.median(values)) / 10
    assert named(seconds, step) == set(np.flatnonzero((values > rule) & matters).tolist())


@given(RANKS, SECONDS, st.data())
def test_one_that_is_slow_enough_is_always_named_alone(seconds, step, data):
    """Its own time moves neither median nor MAD beyond what the others have."""
    rank = data.draw(st.integers(0, len(seconds) - 1))
    others = seconds[:rank] + seconds[rank + 1 :]
    seconds[rank] = max(others) + 3 * (max(others) - min(others)) + max(step, *others) / 10 + 1e-3
    assert rank in named(seconds, step)
    seconds[rank] = 1e6
    assert rank in named(seconds, step)


@given(RANKS, SECONDS)
def test_at_most_half_are_named_and_their_numbers_mean_nothing(seconds, step):
    assert len(named(seconds, step)) <= len(seconds) // 2
    assert named(seconds[::-1], step) == {len(seconds) - 1 - rank for rank in named(seconds, step)}


@given(SECONDS, SECONDS, st.integers(3, 9))
def test_ranks_that_are_alike_have_no_spread_and_no_straggler(own, step, ranks):
    assert named([own] * ranks, step) == set()
    assert named([own] * (ranks - 1) + [own + max(step, own) / 10 * 0.99], step) == set()
    assert named([own] * (ranks - 1) + [own + max(step, own) / 10 * 1.01 + 1e-9], step) == {ranks - 1}


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0, 100.0]])
def test_of_fewer_than_three_none_can_be_told(seconds):
    assert straggler_limit(seconds, 1.0) == math.inf
    assert named(seconds, 1.0) == set()


def test_host_and_devices_are_compared_by_themselves_and_the_worst_comes_first():
    times = [RankTimes(rank, 0.1, 0.01, 0.08) for rank in range(4)]
    times[1] = RankTimes(1, 0.1, 0.05, 0.08)
    times[3] = RankTimes(3, 0.1, 0.01, 0.4)
    assert [(each.rank, each.part) for each in stragglers(times)] == [(3, "device"), (1, "host")]
    assert times_line(times) == "4 ranks: step 100.0 ms, host 10.0 ms (10.0 to 50.0), device 80.0 ms (80.0 to 400.0)"


def test_ranks_that_say_nothing_of_their_devices_are_not_compared_by_them():
    times = [RankTimes(rank, 0.1, 0.01, None if rank < 2 else 9.0 * rank) for rank in range(4)]
    assert stragglers(times) == []
