"""What a check found, and how the findings of all ranks become one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxnet.cluster.ranks import ranks

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
