"""Arithmetic of spans against sets of whole instants."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jaxnet.report.timeline import Span, difference, intersection, total_seconds, union

SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: Span(pair[0], sum(pair))), max_size=9
)


def instants(spans):
    return {instant for span in spans for instant in range(span.start, span.end)}


@given(SPANS)
def test_a_union_is_disjoint_in_order_and_holds_the_same_instants(spans):
    merged = union(spans)
    assert instants(merged) == instants(spans)
    assert total_seconds(merged) == len(instants(spans))
    assert all(span.start < span.end for span in merged)
    assert all(before.end < after.start for before, after in pairwise(merged))


@given(SPANS, SPANS)
def test_intersection_and_difference_share_out_the_instants(a, b):
    a, b = union(a), union(b)
    assert instants(intersection(a, b)) == instants(a) & instants(b)
    assert instants(difference(a, b)) == instants(a) - instants(b)
    assert total_seconds(intersection(a, b)) + total_seconds(difference(a, b)) == total_seconds(a)
    assert intersection(a, b) == intersection(b, a)
