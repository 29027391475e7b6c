"""Arithmetic of sets of instants, each held as disjoint spans in order."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """The instants from `start` up to, not with, `end`; in seconds from the step's start."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Any spans as disjoint ones in order, with gaps between them.

    >>> union([Span(3, 4), Span(0, 2), Span(1, 3), Span(6, 6)])
    (Span(start=0, end=4),)
    """
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.start):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def common(a: Sequence[Span], b: Sequence[Span]) -> tuple[Span, ...]:
    """The instants that are in both; `a` and `b` are results of `union`.

    >>> common([Span(0, 4)], [Span(1, 2), Span(3, 9)])
    (Span(start=1, end=2), Span(start=3, end=4))
    """
    shared: list[Span] = []
    left = right = 0
    while left < len(a) and right < len(b):
        start, end = max(a[left].start, b[right].start), min(a[left].end, b[right].end)
        if start < end:
            shared.append(Span(start, end))
        if a[left].end < b[right].end:
            left += 1
        else:
            right += 1
    return tuple(shared)


def without(a: Sequence[Span], b: Sequence[Span]) -> tuple[Span, ...]:
    """The instants of `a` that are not in `b`; both are results of `union`.

    >>> without([Span(0, 4)], [Span(1, 2), Span(3, 9)])
    (Span(start=0, end=1), Span(start=2, end=3))
    """
    ends = [float("-inf"), *(span.end for span in b)]
    starts = [*(span.start for span in b), float("inf")]
    return common(a, [Span(end, start) for end, start in zip(ends, starts, strict=True)])


def total(spans: Iterable[Span]) -> float:
    """Seconds in a result of `union`."""
    return sum(span.length for span in spans)
