"""What the ranks tell each other: JSON over the coordination service, with a time limit and names."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxnet.cluster import coordination
from jaxnet.cluster.ranks import ranks

_FOLDER = "jaxnet/doctor"


class Unanswered(Exception):
    """Some ranks, `missing`, did not take part in a step; the message says which step."""

    def __init__(self, missing: Sequence[int], step: str, seconds: float):
        super().__init__(f"{ranks(missing)} did not answer at step '{step}' within {seconds:g} s")
        self.missing = missing


@dataclass(frozen=True)
class Talk:
    """The ranks of a job as one of them talks to the others.

    Every step has a name of its own, without a slash, and is used once.

    Attributes:
        rank: this one.
        count: how many there are.
        timeout_seconds: how long each step may take.
    """

    rank: int
    count: int
    timeout_seconds: float

    def gather(self, step: str, value: Any) -> list[Any]:
        """The `value` of every rank; raises `Unanswered` on all that came when some did not."""
        if self.count == 1:
            return [value]
        folder = f"{_FOLDER}/{step}"
        coordination.publish(f"{folder}/{self.rank}", json.dumps(value))
        complete = coordination.wait_for_all(f"{folder}-given", self.timeout_seconds)
        given = coordination.read_all(folder)
        if missing := [rank for rank in range(self.count) if str(rank) not in given]:
            raise Unanswered(missing, step, self.timeout_seconds)
        if not complete:  # the last came just too late, and the others have given up
            raise Unanswered(range(self.count), step, self.timeout_seconds)
        return [json.loads(given[str(rank)]) for rank in range(self.count)]

    def tell(self, key: str, value: str) -> None:
        """Let `await_told` give `value` for this key; once."""
        coordination.publish(f"{_FOLDER}/{key}", value)

    def await_told(self, key: str, rank: int) -> str:
        """What `rank` tells under `key`; raises `Unanswered` when it does not."""
        value = coordination.await_value(f"{_FOLDER}/{key}", self.timeout_seconds)
        if value is None:
            raise Unanswered([rank], key, self.timeout_seconds)
        return value
