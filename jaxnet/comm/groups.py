"""Which devices take part in a collective together: as XLA prints it, and as a mesh has it."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Groups = frozenset[frozenset[int]]
Pairs = frozenset[tuple[int, int]]

_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


def parse_groups(line: str) -> Groups:
    """Device groups of a collective, from any of the notations that XLA prints.

    >>> sorted(map(sorted, parse_groups("replica_groups={{0,1},{2,3}}")))
    [[0, 1], [2, 3]]
    >>> sorted(map(sorted, parse_groups("replica_groups=[2,2]<=[2,2]T(1,0)")))
    [[0, 2], [1, 3]]
    >>> sorted(map(sorted, parse_groups("replica_groups=mesh['host'=2,'device'=2] {'host'}")))
    [[0, 2], [1, 3]]
    """
    if match := _LISTED.search(line):
        lists = re.findall(r"\{([\d,]*)\}", match[1])
        return frozenset(frozenset(int(n) for n in ids.split(",") if n) for ids in lists)
    if match := _IOTA.search(line):
        shape, source = _ints(match[1]), _ints(match[2])
        ids = np.arange(math.prod(source)).reshape(source)
        if match[3]:
            ids = ids.transpose(_ints(match[3]))
        return frozenset(frozenset(group) for group in ids.reshape(shape).tolist())
    if match := _MESH.search(line):
        sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", match[1])}
        return groups_over(tuple(re.findall(r"'([^']+)'", match[2])), sizes)
    return frozenset()


def parse_pairs(line: str) -> Pairs:
    """Senders and receivers of a collective-permute.

    >>> sorted(parse_pairs("source_target_pairs={{0,1},{1,0}}"))
    [(0, 1), (1, 0)]
    """
    match = _PAIRS.search(line)
    return frozenset((int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", match[1])) if match else frozenset()


def _ints(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def groups_over(axes: tuple[str, ...], axis_sizes: Mapping[str, int], within: Sequence[Sequence[int]] = ()) -> Groups:
    """The groups that a collective over `axes` makes of a mesh: places that differ only along `axes`.

    With `within`, each of them is cut into groups of its places.

    >>> sorted(map(sorted, groups_over(("device",), {"host": 2, "device": 2})))
    [[0, 1], [2, 3]]
    >>> sorted(map(sorted, groups_over(("device",), {"host": 1, "device": 4}, [[0, 2], [1, 3]])))
    [[0, 2], [1, 3]]
    """
    rows = _rows(axes, axis_sizes)
    within = within or [range(rows.shape[1])]
    return frozenset(frozenset(row[list(group)].tolist()) for row in rows for group in within)


def pairs_over(axes: tuple[str, ...], axis_sizes: Mapping[str, int], pairs: Iterable[tuple[int, int]]) -> Pairs:
    """Senders and receivers in the whole mesh of a permute along `axes`.

    >>> sorted(pairs_over(("device",), {"host": 2, "device": 2}, [(0, 1)]))
    [(0, 1), (2, 3)]
    """
    rows, pairs = _rows(axes, axis_sizes), list(pairs)
    return frozenset((int(row[a]), int(row[b])) for row in rows for a, b in pairs)


def _rows(axes: tuple[str, ...], axis_sizes: Mapping[str, int]) -> np.ndarray:
    """Places of the mesh [others, along axes]: a row holds those that differ only along `axes`, in their order."""
    names = list(axis_sizes)
    ids = np.arange(math.prod(axis_sizes.values())).reshape([axis_sizes[name] for name in names])
    spanned = [names.index(axis) for axis in axes]
    kept = [dim for dim in range(len(names)) if dim not in spanned]
    width = math.prod(axis_sizes[axis] for axis in axes)
    return ids.transpose(kept + spanned).reshape(-1, width)
