"""What all processes say, and whether they run the same thing: the same configuration, code and packages.

The values travel through the coordination service, or from host to host by MPI, not through device
collectives: processes with different versions of jaxlib or another number of devices would hang or crash
in those, and that is just what has to be reported.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jaxnet
from jaxnet.cluster import coordination
from jaxnet.cluster.environment import ranks
from jaxnet.cluster.start import Cluster
from jaxnet.errors import InputError

# ---- Which code this process runs, in short: a digest of each part of the package ---------------------


_ROOT = Path(jaxnet.__path__[0])


def code_digests(root: Path = _ROOT) -> dict[str, str]:
    """A digest of the Python files of each sub-package of `root`, and of those beside them, by its name.

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


_ABSENT = "(not given)"
_calls = itertools.count()


def check_agreement(cluster: Cluster, fingerprint: Mapping[str, str], timeout_seconds: float = 300.0) -> None:
    """Raise the same InputError on every process when their fingerprints differ, naming who has what.

    `fingerprint` is short text by name, as {"config": sha256, "jax": version}. Every process calls this
    the same number of times. A single process agrees with itself.

    >>> check_agreement(Cluster(), {"jax": "0.12.0"})
    """
    given = all_gather_object(cluster, dict(fingerprint), timeout_seconds, about="what it runs")
    if difference := describe_difference(given):
        raise InputError(difference)


def all_gather_object(cluster: Cluster, value: Any, timeout_seconds: float = 300.0, *, about: str) -> list[Any]:
    """The `value` of every process, in their order, as JSON carries it.

    Every process calls this the same number of times. Raises InputError when some have not said theirs in time; `about`
    names it.

    >>> all_gather_object(Cluster(), {"damaged": [3]}, about="what it has met")
    [{'damaged': [3]}]
    """
    if cluster.process_count == 1:
        return [value]
    if cluster.ranks:
        return cluster.ranks.given_by_all(value)
    folder = f"jaxnet/agreement/{next(_calls)}"
    coordination.publish(f"{folder}/{cluster.process_index}", json.dumps(value))
    if not coordination.wait_for_all(f"{folder}-given", timeout_seconds):
        raise InputError(_missing(cluster.process_count, coordination.read_all(folder), about, timeout_seconds))
    given = coordination.read_all(folder)
    if coordination.wait_for_all(f"{folder}-read", timeout_seconds) and cluster.process_index == 0:
        coordination.forget(folder)
    return [json.loads(given[str(index)]) for index in range(cluster.process_count)]


def describe_difference(fingerprints: Sequence[Mapping[str, str]]) -> str | None:
    """One line that names every key whose values differ and who has which, or None.

    >>> describe_difference([{"jax": "0.12.0"}, {"jax": "0.12.0"}, {"jax": "0.10.2"}])
    "the processes differ: jax is '0.12.0' on ranks 0-1, '0.10.2' on rank 2; give all the same"
    """
    keys = dict.fromkeys(key for fingerprint in fingerprints for key in fingerprint)
    parts = []
    for key in keys:
        holders: dict[str, list[int]] = {}
        for index, fingerprint in enumerate(fingerprints):
            holders.setdefault(fingerprint.get(key, _ABSENT), []).append(index)
        if len(holders) > 1:
            values = (f"{value!r} on {ranks(indices)}" for value, indices in holders.items())
            parts.append(f"{key} is {', '.join(values)}")
    return f"the processes differ: {'; '.join(parts)}; give all the same" if parts else None


def _missing(count: int, given: Mapping[str, str], about: str, timeout_seconds: float) -> str:
    absent = [index for index in range(count) if str(index) not in given]
    return f"{ranks(absent)} of {count} did not say {about} within {timeout_seconds:g} s"
