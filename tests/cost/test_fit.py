"""Lines through measured times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.cost.fit import fitted, rising

BYTES = (1 << 16, 1 << 20, 1 << 22, 1 << 24)


@given(st.floats(1e-5, 1e-2), st.floats(1e-11, 1e-7), st.lists(st.floats(1.5, 20.0), min_size=4, max_size=4))
def test_a_line_is_found_though_one_time_in_five_was_disturbed(latency, per_byte, disturbed):
    true = {size: latency + per_byte * size for size in BYTES}
    times = {size: 4 * [true[size]] + [true[size] * by] for size, by in zip(BYTES, disturbed, strict=True)}
    curve = fitted(times)
    assert curve.line.fits
    assert all(curve.seconds(size) == pytest.approx(seconds, rel=0.1) for size, seconds in true.items())
    assert curve.line.low <= per_byte * 1.0001
    assert curve.line.high >= per_byte * 0.9999


def test_what_is_no_line_says_so_and_is_read_between_medians():
    """A library that takes another algorithm from 4 MiB on."""
    times = {1 << 16: [1e-3] * 3, 1 << 20: [2e-3] * 3, 1 << 22: [30e-3] * 3, 1 << 24: [34e-3] * 3}
    curve = fitted(times)
    assert not curve.line.fits
    assert [curve.seconds(size) for size in times] == pytest.approx([1e-3, 2e-3, 30e-3, 34e-3])
    assert 2e-3 < curve.seconds(1 << 21) < 30e-3
    assert curve.seconds(1 << 25) == pytest.approx(34e-3 + curve.line.per_byte * (1 << 24))


def test_messages_that_take_no_time_were_not_measured():
    with pytest.raises(ValueError, match="messages of 65,536 bytes took no time"):
        fitted({1 << 16: [0.0] * 3, 1 << 20: [1e-3] * 3})


def test_one_size_is_no_line():
    with pytest.raises(ValueError, match="two sizes of messages, got 1"):
        fitted({1024: [1.0]})


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6))
def test_moments_never_fall(moments):
    risen = rising(moments)
    assert risen == sorted(risen)
    assert all(after >= before for after, before in zip(risen, moments, strict=True))
