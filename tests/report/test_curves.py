"""Line charts: what is left out of a long curve, and what is said of it in words."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.report.curves import Curve, at_steps, line_chart, summary_text, thinned, ticks

VALUES = st.floats(-1e6, 1e6)


@given(st.lists(VALUES, min_size=1, max_size=300), st.integers(6, 40))
def test_a_thinned_curve_has_the_ends_and_the_extremes(values, most):
    points = list(enumerate(values))
    kept = thinned(points, most)
    assert len(kept) <= most
    assert set(kept) <= set(points)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert {min(values), max(values)} <= {value for _, value in kept}


def test_a_spike_of_one_point_in_a_million_is_kept():
    points = [(step, 1.0) for step in range(1_000_000)]
    points[123_456] = (123_456, 99.0)
    assert (123_456, 99.0) in thinned(points)


@given(VALUES, st.floats(1e-6, 1e9))
def test_ticks_are_even_and_inside(low, span):
    found = ticks(low, low + span)
    assert 1 <= len(found) <= 12
    assert all(low - 1e-6 * span <= value <= low + span + 1e-6 * span for value in found)


@pytest.mark.parametrize(
    "points",
    [
        [(5, 1.0)],
        [(0, 3.0), (1, 3.0)],
        [(0, 0.0), (10, -1.0)],
        [(1, 1e-9), (2, 1e3)],
    ],
    ids=["one point", "a constant", "below zero", "many powers of ten"],
)
def test_a_chart_is_well_formed_and_all_of_it_is_inside(points):
    drawn = ElementTree.fromstring(line_chart("loss", [Curve("a <b>", points, 0, dotted=True)]))
    width, height = map(float, drawn.attrib["viewBox"].split()[2:])
    [line] = drawn.iter("polyline")
    for place in line.attrib["points"].split():
        x, y = map(float, place.split(","))
        assert 0 <= x <= width
        assert 0 <= y <= height
    assert len(list(drawn.iter("circle"))) == len(points)


def test_words_and_rows_say_what_a_chart_shows():
    curves = [Curve("train", [(1, 4.0), (2, 2.0), (3, 1.0)], 0), Curve("test", [(2, 3.0)], 1)]
    assert summary_text("loss", curves).startswith("loss. train: 4 at step 1, 1 at step 3; between 1 and 4 test: 3 at")
    assert at_steps(curves) == [(1, [4.0, None]), (2, [2.0, 3.0]), (3, [1.0, 3.0])]
    many = [Curve("train", [(step, math.sqrt(step)) for step in range(1000)], 0)]
    assert [len(at_steps(many, 20)), at_steps(many)[0][0], at_steps(many)[-1][0]] == [20, 0, 999]
