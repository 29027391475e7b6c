"""The time of a message from its bytes: a latency and a rate, fitted to what was measured.

    seconds = latency + per_byte * bytes

A measurement that was disturbed must not move the line, so it is Theil and Sen's: the median of the slopes between all
pairs of points (scipy.stats.theilslopes). Where times are no line, as where a library changes its algorithm with the
size, the medians themselves are read, and what lies between two of them by proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_FITS = 0.2  # a line is none where a median is further from it than this part of itself


class Line(NamedTuple):
    """Latency and rate.

    Attributes:
        latency: seconds of a message without bytes.
        per_byte: seconds.
        low: of `per_byte`, the least that the points allow with a confidence of 95 %.
        high: the most.
        worst: the largest distance of a median from the line, as a part of that median.
    """

    latency: float
    per_byte: float
    low: float
    high: float
    worst: float

    @property
    def fits(self) -> bool:
        """Whether all medians are near the line."""
        return self.worst <= _FITS

    def seconds(self, bytes_: float) -> float:
        """Of a message of so many bytes, on the line."""
        return self.latency + self.per_byte * bytes_


@dataclass(frozen=True)
class Curve:
    """Times of messages by their bytes.

    Attributes:
        medians: seconds by bytes, the smallest first.
        line: fitted to all points.
    """

    medians: Mapping[int, float]
    line: Line

    def seconds(self, bytes_: float) -> float:
        """Of a message of so many bytes: on the line if it fits; else between medians, and beyond the last by its rate.

        >>> curve = fitted({1000: [1.0, 1.1], 2000: [1.0, 1.0], 3000: [8.0, 8.0]})
        >>> curve.line.fits, curve.seconds(2500)
        (False, 4.5)
        """
        if self.line.fits:
            return self.line.seconds(bytes_)
        sizes, medians = list(self.medians), list(self.medians.values())
        beyond = max(0.0, bytes_ - sizes[-1])
        return float(np.interp(bytes_, sizes, medians)) + self.line.per_byte * beyond

    def slower(self, times: float) -> "Curve":
        """The same on a link that takes so many times as long for a byte; its latency stays.

        >>> line = Line(latency=1.0, per_byte=0.002, low=0.002, high=0.002, worst=0.0)
        >>> Curve({1000: 3.0}, line).slower(4).seconds(1000)
        9.0
        """
        more = (times - 1) * self.line.per_byte
        medians = {bytes_: seconds + more * bytes_ for bytes_, seconds in self.medians.items()}
        low, high = times * self.line.low, times * self.line.high
        return Curve(medians, self.line._replace(per_byte=times * self.line.per_byte, low=low, high=high))


def fitted(times: Mapping[int, Sequence[float]]) -> Curve:
    """The curve through measured seconds, several for each number of bytes.

    Raises:
        ValueError: fewer than two sizes, or messages that took no time.

    >>> curve = fitted({10**6: [0.011, 0.011, 0.031], 2 * 10**6: 3 * [0.021], 4 * 10**6: 3 * [0.041]})
    >>> round(curve.line.latency, 6), round(1e-6 / curve.line.per_byte, 3), curve.line.fits  # MB/s
    (0.001, 100.0, True)
    """
    if len(times) < 2:
        raise ValueError(f"a line needs two sizes of messages, got {len(times)}")
    if none := [bytes_ for bytes_, seen in times.items() if not np.median(seen) > 0]:
        raise ValueError(f"messages of {none[0]:,} bytes took no time")
    from scipy.stats import theilslopes  # half a second, and only who measures needs it

    points = [(bytes_, each) for bytes_, seen in sorted(times.items()) for each in seen]
    slope, _, low, high = theilslopes([each for _, each in points], [bytes_ for bytes_, _ in points])
    per_byte = max(float(slope), 0.0)
    medians = {bytes_: float(np.median(seen)) for bytes_, seen in sorted(times.items())}
    latency = max(0.0, float(np.median([each - per_byte * bytes_ for bytes_, each in medians.items()])))
    worst = max(abs(latency + per_byte * bytes_ - each) / each for bytes_, each in medians.items())
    return Curve(medians, Line(latency, per_byte, float(low), float(high), worst))


def rising(seconds: Sequence[float]) -> list[float]:
    """Moments that cannot come before one another: noise that says so is taken out, by the larger of the two.

    >>> rising([1.0, 3.0, 2.5, 4.0])
    [1.0, 3.0, 3.0, 4.0]
    """
    return [float(each) for each in np.maximum.accumulate(seconds)]
