"""What a run is to do about numbers that go wrong."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Guard:
    """What is done about numbers that go wrong.

    Attributes:
        skip: a step whose loss or gradient is not finite changes nothing but the count of steps.
        rollback_after: so many such steps in a row send the run back to the last checkpoint before them; it goes on
            with the examples after them.
        max_rollbacks: how often, before the run stops.
        check_replicas_every: steps after which devices compare what they should hold alike, as they do before every
            checkpoint; none: never.
        on_difference: whether a run whose devices differ stops, or trains again from the last checkpoint.
    """

    skip: bool = True
    rollback_after: int = 5
    max_rollbacks: int = 3
    check_replicas_every: int | None = 100
    on_difference: Literal["stop", "restore"] = "stop"
