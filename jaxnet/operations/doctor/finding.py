"""What a check found, and how the findings of all ranks become one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxnet.cluster.agreement import differing_keys
from jaxnet.cluster.environment import name_ranks

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "not checked"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        check: what was checked.
        status: `OK`, `WARNING` (a run can start, and may still fail), `FAILED` or `SKIPPED`.
        found: what was found, with names and numbers.
        cure: what to do; empty where nothing has to be done.
    """

    check: str
    status: str
    found: str
    cure: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, OK, found)


def warning(check: str, found: str, cure: str) -> Finding:
    """Something is wrong that does not stop a run."""
    return Finding(check, WARNING, found, cure)


def failed(check: str, found: str, cure: str) -> Finding:
    """Something is wrong that stops or spoils a run."""
    return Finding(check, FAILED, found, cure)


def skipped(check: str, why: str) -> Finding:
    """The check could not be made."""
    return Finding(check, SKIPPED, why)


# ---- Findings of all ranks ------------------------------------------------------------------------------


def check_same(check: str, by_rank: Sequence[Mapping[str, str]], alike: str, cure: str) -> Finding:
    """Compare the ranks' values key by key; `alike` is the finding when all are the same, else `cure` applies.

    >>> check_same("versions", [{"jax": "0.12.0"}, {"jax": "0.12.0"}, {"jax": "0.10.2"}], "", "").found
    "jax is '0.12.0' on ranks 0-1, '0.10.2' on rank 2"
    """
    differing = differing_keys(by_rank)
    return failed(check, "; ".join(differing), cure) if differing else ok(check, alike)


def merged(by_rank: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    """Merge the findings of each rank about itself into one list, by check. Equal findings are said once.

    Of a check that is fine everywhere, only one rank's finding is shown. Otherwise only those of ranks with a problem.

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
        return [replace(finding, found=f"{name_ranks(own)}: {finding.found}") for finding, own in wrong.items()]
    first, own = next(iter(holders.items()))
    others = sorted({rank for same in holders.values() for rank in same} - set(own))
    if not others:
        return [first]
    return [replace(first, found=f"{name_ranks(own)}: {first.found}; ok on {name_ranks(others)} too")]
