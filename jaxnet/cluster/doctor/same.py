"""Whether all ranks run the same: versions, code, configuration, devices; and who differs from the most."""

from collections import Counter
from collections.abc import Mapping, Sequence

from jaxnet.cluster.doctor.finding import Finding, failed, ok
from jaxnet.cluster.ranks import ranks

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
