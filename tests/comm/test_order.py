"""Merging by cost: as good as the best of all partitions, and never worse than the greedy rule."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.comm.order import finish_time, merge_by_cost, merge_up_to

seconds = st.floats(0, 10, allow_subnormal=False)
leaves = st.lists(st.tuples(seconds, st.integers(0, 100)), max_size=9)
costs = st.tuples(seconds, seconds)


def partitions(count):
    """All 2^(count - 1) ways to cut a sequence into consecutive groups."""
    for cuts in itertools.product([False, True], repeat=max(0, count - 1)):
        ends = [place for place, cut in enumerate(cuts, 1) if cut] + [count]
        yield tuple(tuple(range(begin, end)) for begin, end in itertools.pairwise([0, *ends]) if begin < end)


def greedy(ready, sizes, alpha, beta):
    """The rule of the authors' program: merge into the next if the wait for it is shorter than alpha."""
    groups, current, done = [], [0], 0.0
    for leaf in range(1, len(sizes)):
        start = max(done, *(ready[index] for index in current))
        if ready[leaf] - start < alpha:
            current.append(leaf)
        else:
            done = start + alpha + beta * sum(sizes[index] for index in current)
            groups.append(tuple(current))
            current = [leaf]
    return (*groups, tuple(current))


def unzip(leaves):
    return [ready for ready, _ in leaves], [size for _, size in leaves]


@given(leaves, costs)
def test_no_partition_ends_earlier(leaves, costs):
    ready, sizes = unzip(leaves)
    best = min(finish_time(groups, ready, sizes, *costs) for groups in partitions(len(leaves)))
    assert finish_time(merge_by_cost(ready, sizes, *costs), ready, sizes, *costs) == best


@given(leaves, costs)
def test_groups_are_consecutive_and_hold_every_leaf_once(leaves, costs):
    groups = merge_by_cost(*unzip(leaves), *costs)
    assert [leaf for group in groups for leaf in group] == list(range(len(leaves)))
    assert all(groups)


@given(leaves.filter(bool), costs)
def test_never_worse_than_the_greedy_rule(leaves, costs):
    ready, sizes = unzip([(ready, size) for ready, size in sorted(leaves)])
    exact = finish_time(merge_by_cost(ready, sizes, *costs), ready, sizes, *costs)
    assert exact <= finish_time(greedy(ready, sizes, *costs), ready, sizes, *costs)


def test_the_greedy_rule_is_not_optimal():
    ready, sizes = [0, 0.9, 1.8], [10, 1, 1]
    assert greedy(ready, sizes, 1, 1) == ((0, 1, 2),)
    assert finish_time(((0, 1, 2),), ready, sizes, 1, 1) == 14.8
    assert merge_by_cost(ready, sizes, 1, 1) == ((0,), (1, 2))


def test_the_ends_of_the_scale():
    ready, sizes = [1.0, 2.0, 3.0, 4.0], [8] * 4
    assert merge_by_cost(ready, sizes, alpha=100, beta=0.01) == ((0, 1, 2, 3),)
    assert merge_by_cost(ready, sizes, alpha=0, beta=0.1) == ((0,), (1,), (2,), (3,))
    assert merge_by_cost([], [], alpha=1, beta=1) == ()


@given(st.integers(1, 100), st.lists(st.integers(0, 100)))
def test_groups_hold_what_fits_and_no_two_of_them_would_fit_together(most, sizes):
    groups = merge_up_to(most, sizes)
    assert [leaf for group in groups for leaf in group] == list(range(len(sizes)))
    held = [sum(sizes[leaf] for leaf in group) for group in groups]
    assert all(size <= most or len(group) == 1 for size, group in zip(held, groups, strict=True))
    assert all(size + sizes[after[0]] > most for size, after in zip(held, groups[1:], strict=False))


def test_a_time_is_wanted_for_each_leaf():
    with pytest.raises(ValueError, match="a time for each of 2 leaves, got 1"):
        merge_by_cost([0.0], [1, 2], alpha=1, beta=1)
