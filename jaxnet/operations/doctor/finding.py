"""What a check found, and how the findings of all ranks become one table."""

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jaxnet.cluster import coordination
from jaxnet.cluster.environment import ranks

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "not checked"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        check: what was looked at.
        status: `OK`, `WARNING` (it works, and may not for long), `FAILED` or `SKIPPED`.
        found: what is so, with names and numbers.
        cure: what to do about it; empty where nothing has to be done.
    """

    check: str
    status: str
    found: str
    cure: str = ""


def ok(check: str, found: str) -> Finding:
    """A finding that is as it should be."""
    return Finding(check, OK, found)


def warning(check: str, found: str, cure: str) -> Finding:
    """A finding that does not stop a run."""
    return Finding(check, WARNING, found, cure)


def failed(check: str, found: str, cure: str) -> Finding:
    """A finding that stops a run, or spoils it."""
    return Finding(check, FAILED, found, cure)


def skipped(check: str, why: str) -> Finding:
    """A check that could not be made."""
    return Finding(check, SKIPPED, why)


def merged(by_rank: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    """The findings that each rank made about itself as one list, by check; what is alike is said once.

    Of a check that is fine everywhere one rank speaks; where it is not, only those speak that it concerns.

    >>> low = warning("memory", "1 MiB free", "free some")
    >>> merged({0: [ok("memory", "9 GiB free")], 1: [low], 2: [low]})[0].found
    'ranks 1-2: 1 MiB free'
    >>> merged({0: [ok("memory", "9 GiB free")], 1: [ok("memory", "8 GiB free")]})[0].found
    'rank 0: 9 GiB free; ok on rank 1 too'
    """
    checks = dict.fromkeys(finding.check for own in by_rank.values() for finding in own)
    return [line for check in checks for line in _about(check, by_rank)]


def _about(check: str, by_rank: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    holders: dict[Finding, list[int]] = {}
    for rank in sorted(by_rank):
        for finding in by_rank[rank]:
            if finding.check == check:
                holders.setdefault(finding, []).append(rank)
    if len(by_rank) == 1:
        return list(holders)
    if wrong := {finding: own for finding, own in holders.items() if finding.status in (WARNING, FAILED)}:
        return [replace(finding, found=f"{ranks(own)}: {finding.found}") for finding, own in wrong.items()]
    first, own = next(iter(holders.items()))
    others = sorted({rank for same in holders.values() for rank in same} - set(own))
    if not others:
        return [first]
    return [replace(first, found=f"{ranks(own)}: {first.found}; ok on {ranks(others)} too")]


# ---- A time limit on anything: a lookup of a name, a dead file server, a collective that nobody joins -


T = TypeVar("T")

_THREAD = "jaxnet-within"


class TimedOut(Exception):
    """It took longer than it may; a thread of this process still waits for it."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """What `function` returns or raises, or `TimedOut`.

    Nothing can end a thread that waits in the kernel: it is left behind, and while `any_left` the process must end
    by `os._exit`.

    >>> within(60, lambda: 1 + 1)
    2
    """
    answer: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put((function(), None))
        except BaseException as error:
            answer.put((None, error))

    thread = threading.Thread(target=run, name=_THREAD, daemon=True)
    thread.start()
    try:
        value, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimedOut from None
    thread.join()  # it has answered, and must not be among those that are left
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def any_left() -> bool:
    """Whether a thread of `within` still waits."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


# ---- Whether all ranks run the same: versions, code, configuration, devices; and who differs from the most


_ABSENT = "(not given)"


def check_same(check: str, by_rank: Sequence[Mapping[str, str]], alike: str, cure: str) -> Finding:
    """Compare what each rank says by key: `alike` is found when all say the same, and `cure` is for those that differ.

    >>> check_same("versions", [{"jax": "0.12.0"}, {"jax": "0.12.0"}, {"jax": "0.10.2"}], "", "").found
    "jax is '0.10.2' on rank 2, '0.12.0' on ranks 0-1"
    """
    keys = dict.fromkeys(key for values in by_rank for key in values)
    differing = {key: text for key in keys if (text := describe(key, [own.get(key, _ABSENT) for own in by_rank]))}
    if not differing:
        return ok(check, alike)
    return failed(check, "; ".join(differing.values()), cure)


def describe(key: str, values: Sequence[str]) -> str | None:
    """Who has which value of `key`, those whom the most agree with last; None when all are alike."""
    if len(set(values)) == 1:
        return None
    usual = majority(values)
    others = [value for value in dict.fromkeys(values) if value != usual]
    who = (f"{value!r} on {_holders(value, values)}" for value in [*others, usual])
    return f"{key} is {', '.join(who)}"


def majority(values: Sequence[str]) -> str:
    """The value that most have; of two that equally many have, the first."""
    return Counter(values).most_common(1)[0][0]


def _holders(value: str, values: Sequence[str]) -> str:
    return ranks([rank for rank, own in enumerate(values) if own == value])


# ---- What the ranks tell each other: JSON over the coordination service, with a time limit and names --


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
