"""Bucket plans and packing: law L5, for any leaves, caps and padding."""

import functools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.comm import sharded
from jaxnet.comm.buckets import pack, plan_buckets, unpack
from jaxnet.comm.order import merge_up_to

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
dtypes = st.sampled_from(["float32", "float16", "int32"])
leaves = st.lists(st.builds(jax.ShapeDtypeStruct, shapes, dtypes), max_size=8)
caps = st.none() | st.integers(1, 400)
plans = st.builds(
    plan_buckets,
    leaves,
    caps,
    first_bucket_bytes=st.none() | st.integers(1, 100),
    split=st.booleans(),
    multiple=st.integers(1, 12),
)


@given(plans)
def test_every_element_is_in_exactly_one_bucket(plan):
    seen = [np.zeros(math.prod(shape), int) for shape in plan.shapes]
    for bucket in plan.buckets:
        for piece in bucket.pieces:
            seen[piece.leaf][piece.start : piece.start + piece.size] += 1
    assert all((count == 1).all() for count in seen)


@given(plans)
def test_pieces_lie_side_by_side_in_one_dtype(plan):
    for bucket in plan.buckets:
        ends = np.cumsum([piece.size for piece in bucket.pieces])
        assert [piece.offset for piece in bucket.pieces] == [0, *ends[:-1]]
        assert {plan.dtypes[piece.leaf] for piece in bucket.pieces} == {bucket.dtype}


@given(leaves, caps, st.booleans(), st.integers(1, 12))
def test_padding_is_the_least_that_divides(leaves, cap, split, multiple):
    for bucket in plan_buckets(leaves, cap, split=split, multiple=multiple).buckets:
        assert bucket.padded % multiple == 0
        assert 0 <= bucket.padded - bucket.size < multiple


@given(leaves, st.integers(1, 400))
def test_with_splitting_the_cap_is_hard(leaves, cap):
    for bucket in plan_buckets(leaves, cap).buckets:
        itemsize = np.dtype(bucket.dtype).itemsize
        assert bucket.size * itemsize <= max(cap, itemsize)


@given(leaves, st.integers(1, 400))
def test_without_splitting_leaves_stay_whole_and_all_but_the_last_bucket_reach_the_cap(leaves, cap):
    plan = plan_buckets(leaves, cap, split=False)
    for bucket in plan.buckets:
        assert all(piece.size == math.prod(plan.shapes[piece.leaf]) for piece in bucket.pieces)
    for dtype in set(plan.dtypes):
        same = [bucket for bucket in plan.buckets if bucket.dtype == dtype]
        itemsize = np.dtype(dtype).itemsize
        assert all(bucket.size * itemsize >= cap // itemsize * itemsize for bucket in same[:-1])


@given(leaves)
def test_no_cap_gives_one_bucket_a_dtype(leaves):
    filled = {np.dtype(leaf.dtype).name for leaf in leaves if math.prod(leaf.shape)}
    assert len(plan_buckets(leaves, None).buckets) == len(filled)


@given(leaves, caps)
def test_plans_are_hashable_and_equal_when_made_again(leaves, cap):
    assert hash(plan_buckets(leaves, cap)) == hash(plan_buckets(leaves, cap))


@functools.partial(jax.jit, static_argnums=0)
def there_and_back(plan, values):
    messages = pack(plan, values)
    return messages, unpack(plan, messages)


@given(plans)
def test_unpack_inverts_pack(plan):
    values = [
        np.arange(math.prod(shape)).reshape(shape).astype(dtype)
        for shape, dtype in zip(plan.shapes, plan.dtypes, strict=True)
    ]
    messages, back = there_and_back(plan, values)
    assert [message.shape for message in messages] == [(bucket.padded,) for bucket in plan.buckets]
    for value, again in zip(values, back, strict=True):
        assert again.dtype == value.dtype
        np.testing.assert_array_equal(again, value)


def test_the_first_bucket_can_be_smaller():
    leaf = jax.ShapeDtypeStruct((10,), "float32")
    plan = plan_buckets([leaf] * 6, 80, first_bucket_bytes=40, split=False)
    assert [len(bucket.pieces) for bucket in plan.buckets] == [1, 2, 2, 1]


def test_large_leaves_are_cut_into_equal_parts():
    plan = plan_buckets([jax.ShapeDtypeStruct((100,), "float32")], 160)
    assert [bucket.size for bucket in plan.buckets] == [34, 33, 33]


def test_a_cap_below_one_byte_is_refused():
    with pytest.raises(ValueError, match=r"^bucket_bytes must be at least 1, got 0"):
        plan_buckets([], 0)
    with pytest.raises(ValueError, match="first_bucket_bytes must be at least 1, got -1"):
        plan_buckets([], 8, first_bucket_bytes=-1)
    with pytest.raises(ValueError, match=r"^bucket_bytes must be at least 1, got -5"):
        merge_up_to(-5, [4])
    with pytest.raises(ValueError, match=r"^bucket_bytes must be at least 1, got -5"):
        sharded("device", bucket_bytes=-5)
