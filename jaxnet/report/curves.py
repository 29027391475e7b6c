"""Line charts as SVG: small, styled by the page that holds them, and readable without a pointer or a script."""

import bisect
import html
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 44  # pixels around the curves
MOST_POINTS = 1200  # of a curve: two for each pixel of width are all that a reader can see


class Curve(NamedTuple):
    """A line of a chart.

    Attributes:
        label: as its legend has it.
        points: (x, y), by x.
        style: a number: the page's style sheet gives it a colour and dashes.
        dotted: whether each point is marked, as of tests, which are few.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: int
    dotted: bool = False


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most so many points, by which a curve looks the same: of each stretch of x the lowest and the highest.

    The first and the last point stay, and so do the least and the greatest value.

    >>> thinned([(x, (x - 50) ** 2) for x in range(100)], most=6)
    [(0, 2500), (49, 1), (50, 0), (99, 2401)]
    """
    if len(points) <= most:
        return list(points)
    stretches, kept = max(1, most // 2 - 1), {0, len(points) - 1}
    for number in range(stretches):
        first, after = number * len(points) // stretches, (number + 1) * len(points) // stretches
        inside = range(first, after)
        kept |= {min(inside, key=lambda at: points[at][1]), max(inside, key=lambda at: points[at][1])}
    return [points[at] for at in sorted(kept)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two, about so many: 1, 2 or 5 times a power of ten apart.

    >>> ticks(0.0, 1.0), ticks(3, 640)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [200.0, 400.0, 600.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def number_text(value: float) -> str:
    """A number on an axis or in a table: as short as it can be.

    >>> [number_text(value) for value in (0.25, 12345.678, 0.00001234, 3, 3e6)]
    ['0.25', '12,346', '1.234e-05', '3', '3,000,000']
    """
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"


def line_chart(name: str, curves: Sequence[Curve], x_name: str = "step") -> str:
    """An SVG of these curves, at least one of which has points; a scale by powers of ten where values span many."""
    shown = [curve._replace(points=thinned(curve.points)) for curve in curves if curve.points]
    xs = [x for curve in shown for x, _ in curve.points]
    ys = [y for curve in shown for _, y in curve.points]
    by_powers = min(ys) > 0 and max(ys) / min(ys) > 100
    scale = math.log10 if by_powers else float
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = scale(min(ys)), scale(max(ys))
    margin = 0.05 * (y_high - y_low) or 0.5 * abs(y_high) or 1.0
    y_low, y_high = y_low - margin, y_high + margin

    def across(x: float) -> float:
        return LEFT + (x - x_low) / ((x_high - x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (scale(y) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" focusable="false">']
    powers = [float(power) for power in range(math.ceil(y_low), math.floor(y_high) + 1)] if by_powers else []
    for value in powers if len(powers) > 1 else ticks(y_low, y_high):
        at = 10**value if by_powers else value
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(at):.1f}" y2="{down(at):.1f}"/>'
            f'<text x="{LEFT - 6}" y="{down(at) + 4:.1f}" text-anchor="end">{number_text(at)}</text>'
        )
    for value in ticks(x_low, x_high):
        parts.append(
            f'<text x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{number_text(value)}</text>'
        )
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{html.escape(x_name)}</text>')
    for curve in shown:
        places = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve.points)
        kind = f"curve style-{curve.style}"
        parts.append(f'<polyline class="{kind}" points="{places}"/>')
        if curve.dotted or len(curve.points) == 1:
            parts += [
                f'<circle class="{kind}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3"/>' for x, y in curve.points
            ]
    parts.append("</svg>")
    return "".join(parts)


def summary_text(name: str, curves: Sequence[Curve]) -> str:
    """What a chart shows, in words: first, last, least and greatest value of each curve.

    >>> summary_text("loss", [Curve("train", [(1, 2.0), (2, 0.5)], 0)])
    'loss. train: 2 at step 1, 0.5 at step 2; between 0.5 and 2'
    """
    said = [f"{name}."]
    for curve in curves:
        (x0, y0), (x1, y1) = curve.points[0], curve.points[-1]
        values = [y for _, y in curve.points]
        said.append(
            f"{curve.label}: {number_text(y0)} at step {number_text(x0)}, {number_text(y1)} at step {number_text(x1)}; "
            f"between {number_text(min(values))} and {number_text(max(values))}"
        )
    return " ".join(said)


def at_steps(curves: Sequence[Curve], most: int = 20) -> list[tuple[float, list[float | None]]]:
    """Rows of a table: for some of the steps the last value of each curve up to there; None before its first."""
    steps = sorted({x for curve in curves for x, _ in curve.points})
    chosen = sorted({steps[round(place * (len(steps) - 1) / max(1, most - 1))] for place in range(most)})
    rows = []
    for step in chosen:
        row: list[float | None] = []
        for curve in curves:
            place = bisect.bisect_right(curve.points, (step, math.inf)) - 1
            row.append(curve.points[place][1] if place >= 0 else None)
        rows.append((step, row))
    return rows
