"""When a run that hangs is ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Watchdog:
    """When a run that does not get on is ended, with status 79. Time spent compiling does not count.

    Attributes:
        factor: a step may take so many times the median of the last steps; none: nothing is watched.
        floor_seconds: and at least this long.
        other_seconds: what anything else may take: start-up, the first steps, an evaluation, a save.
    """

    factor: float | None = 20.0
    floor_seconds: float = 60.0
    other_seconds: float = 1800.0
