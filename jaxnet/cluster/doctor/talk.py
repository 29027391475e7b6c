"""What the ranks tell each other: JSON over the coordination service, with a time limit and names."""

import json
from dataclasses import dataclass
from typing import Any

from jaxnet.cluster import coordination
from jaxnet.cluster.ranks import ranks


class Unanswered(Exception):
    """Some ranks did not take part in a step; the message says which."""


@dataclass(frozen=True)
class Talk:
    """The ranks of a job as one of them talks to the others; each step has a name of its own, used once.

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
        folder = f"jaxnet/doctor/{step}"
        coordination.publish(f"{folder}/{self.rank}", json.dumps(value))
        complete = coordination.wait_for_all(f"{folder}-given", self.timeout_seconds)
        given = coordination.read_all(folder)
        if missing := [rank for rank in range(self.count) if str(rank) not in given]:
            raise Unanswered(f"{ranks(missing)} did not answer at step '{step}' within {self.timeout_seconds:g} s")
        if not complete:
            raise Unanswered(f"not all ranks were there at step '{step}' within {self.timeout_seconds:g} s")
        return [json.loads(given[str(rank)]) for rank in range(self.count)]

    def tell(self, key: str, value: str) -> None:
        """Let `await_told` give `value` for this key; once."""
        coordination.publish(f"jaxnet/doctor/{key}", value)

    def await_told(self, key: str) -> str:
        """What some rank tells under `key`; raises `Unanswered` when it does not."""
        value = coordination.await_value(f"jaxnet/doctor/{key}", self.timeout_seconds)
        if value is None:
            raise Unanswered(f"nobody answered at step '{key}' within {self.timeout_seconds:g} s")
        return value
