"""Let all processes exchange values, and check that they run the same: configuration, code and packages.

Values travel through the coordination service, or by MPI from host to host, not through device collectives. Those
would hang or crash with another version of jaxlib or another number of devices, which is what must be reported.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxnet.cluster import coordination
from jaxnet.cluster.environment import name_ranks
from jaxnet.cluster.start import Cluster
from jaxnet.errors import InputError

_ABSENT = "(not given)"
_calls = itertools.count()


def all_gather_object(cluster: Cluster, value: Any, timeout_seconds: float = 300.0, *, about: str) -> list[Any]:
    """The `value` of every process, in order, as JSON carries it.

    Every process calls this the same number of times.

    Raises:
        InputError: some processes did not give theirs in time; the message calls it `about`.

    >>> all_gather_object(Cluster(), {"damaged": [3]}, about="what it has met")
    [{'damaged': [3]}]
    """
    if cluster.process_count == 1:
        return [value]
    if cluster.mpi:
        return cluster.mpi.all_gather_object(value)
    folder = f"jaxnet/agreement/{next(_calls)}"
    coordination.publish(f"{folder}/{cluster.process_index}", json.dumps(value))
    if not coordination.wait_for_all(f"{folder}-given", timeout_seconds):
        raise InputError(_missing(cluster.process_count, coordination.read_all(folder), about, timeout_seconds))
    given = coordination.read_all(folder)
    # Free the service's memory, but only once everyone has read.
    if coordination.wait_for_all(f"{folder}-read", timeout_seconds) and cluster.process_index == 0:
        coordination.forget(folder)
    return [said_by(index, given) for index in range(cluster.process_count)]


def said_by(rank: int, given: Mapping[str, str]) -> Any:
    """What `rank` has published, of the JSON texts `given` by rank; InputError if it is no JSON.

    >>> said_by(1, {"0": "[]", "1": "{}"})
    {}
    """
    try:
        return json.loads(given[str(rank)])
    except (KeyError, ValueError, RecursionError):
        raise InputError(_not_ours(rank, given.get(str(rank)))) from None


def _not_ours(rank: int, said: Any) -> str:
    return (
        f"rank {rank} said {repr(said)[:60]}, which this version of jaxnet does not say: install the same everywhere,"
        " and let no other program reach the coordinator's port"
    )


def _missing(count: int, given: Mapping[str, str], about: str, timeout_seconds: float) -> str:
    absent = [index for index in range(count) if str(index) not in given]
    return f"{name_ranks(absent)} of {count} did not say {about} within {timeout_seconds:g} s"


def check_agreement(cluster: Cluster, fingerprint: Mapping[str, str], timeout_seconds: float = 300.0) -> None:
    """Raise the same InputError on every process when their fingerprints differ, naming who has what.

    `fingerprint` is short text by name, as {"config": sha256, "jax": version}. Every process calls this
    the same number of times. A single process agrees with itself.

    >>> check_agreement(Cluster(), {"jax": "0.12.0"})
    """
    given = all_gather_object(cluster, dict(fingerprint), timeout_seconds, about="what it runs")
    for rank, said in enumerate(given):
        if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
            raise InputError(_not_ours(rank, said))
    if difference := describe_difference(given):
        raise InputError(difference)


def describe_difference(fingerprints: Sequence[Mapping[str, str]]) -> str | None:
    """One line that names every key whose values differ and who has which, or None.

    >>> describe_difference([{"jax": "0.12.0"}, {"jax": "0.12.0"}, {"jax": "0.10.2"}])
    "the processes differ: jax is '0.12.0' on ranks 0-1, '0.10.2' on rank 2; give all the same"
    """
    differing = differing_keys(fingerprints)
    return f"the processes differ: {'; '.join(differing)}; give all the same" if differing else None


def differing_keys(by_rank: Sequence[Mapping[str, str]]) -> list[str]:
    """For each key that is not the same on all ranks, who has which value.

    >>> differing_keys([{"jax": "0.12.0"}, {"jax": "0.12.0", "config": "a"}])
    ["config is '(not given)' on rank 0, 'a' on rank 1"]
    """
    differing = []
    for key in dict.fromkeys(key for values in by_rank for key in values):
        holders: dict[str, list[int]] = {}
        for rank, values in enumerate(by_rank):
            holders.setdefault(values.get(key, _ABSENT), []).append(rank)
        if len(holders) > 1:
            who = (f"{value!r} on {name_ranks(ranks)}" for value, ranks in holders.items())
            differing.append(f"{key} is {', '.join(who)}")
    return differing


_ROOT = Path(__file__).resolve().parents[1]


def code_digests(root: Path = _ROOT) -> dict[str, str]:
    """For each sub-package of `root`, and for the files beside them, a digest of its Python files.

    >>> sorted(code_digests())[:3]
    ['code of jaxnet', 'code of jaxnet/checkpoints', 'code of jaxnet/cli']
    """
    digests: dict[str, hashlib._Hash] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        part = f"{root.name}/{inside.parts[0]}" if len(inside.parts) > 1 else root.name
        digest = digests.setdefault(f"code of {part}", hashlib.sha256())
        text = path.read_bytes()
        digest.update(f"{inside.as_posix()} {len(text)}\n".encode() + text)
    return {part: digest.hexdigest()[:16] for part, digest in digests.items()}
