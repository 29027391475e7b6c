"""Read the collectives of a compiled program from its optimized HLO text."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# ---- Groups of devices ----


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


# ---- Collectives ----


_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "s64": "int64", "s32": "int32", "s16": "int16", "s8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "pred": "bool",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\(")
_COLLECTIVE = re.compile(r"^(all-reduce|reduce-scatter|all-gather|collective-permute|all-to-all)(-start)?$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^\s*(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TARGET = re.compile(r'custom_call_target="(\w+)"')
_MPI_CALLS = {"mpi_allreduce_ffi": "all-reduce", "mpi_sendrecv_ffi": "collective-permute"}
_HEAVY = frozenset({"dot", "convolution", "custom-call"})


@dataclass(frozen=True)
class FoundCollective:
    """A collective of a compiled program.

    Attributes:
        kind: 'all-reduce', 'reduce-scatter', 'all-gather', 'collective-permute' or 'all-to-all'.
        groups: which devices (places in the mesh, counted row by row) take part together; empty means all.
        arrays: dtype and number of elements of each array it carries. More than one: the compiler has
            combined several collectives.
        compute_before: operations scheduled between the previous collective and this one that are, or hold, a
            dot, a convolution or a library call.
        name: the instruction's name.
        op_name: the JAX operation that it came from, with its named scopes.
        pairs: (sender, receiver) of a collective-permute.
        transport: 'xla', or 'mpi' for a call of the MPI library, which names no groups.
    """

    kind: str
    groups: Groups
    arrays: tuple[tuple[str, int], ...]
    compute_before: int
    name: str
    op_name: str
    pairs: Pairs = frozenset()
    transport: str = "xla"


def collectives_in(hlo: str, *, every_device: bool = False) -> list[FoundCollective]:
    """The collectives of a compiled program (`jax.jit(f).lower(...).compile().as_text()`), in schedule order.

    Sizes are those of the whole message, as `Collective.elements` counts. Collectives over groups of one device
    move nothing and are left out. Those in a loop, or in a branch of a conditional, count once each, as in a plan.
    The text may hold several programs, one after the other; `compute_before` then counts across them.

    Args:
        hlo: the text.
        every_device: give the MPI calls of all devices of this process. Each device makes its own, in a branch of a
            conditional over devices; by default the first device's stand for all.
    """
    found: list[FoundCollective] = []
    others: set[int] = set()
    within = defaultdict[str, list[FoundCollective]](
        list
    )  # MPI calls of a computation, those in what it calls included
    compute, before, heavy, computation = 0, 0, set[str](), ""
    for line in hlo.splitlines():
        # A computation is printed before those that call it, the entry last.
        if line.startswith("HloModule"):
            before = compute
            heavy.clear()
            within.clear()
        elif header := _COMPUTATION.match(line):
            computation, compute = header[1], before if line.startswith("ENTRY") else 0
        elif match := _INSTRUCTION.match(line):
            if _COLLECTIVE.match(match["op"]):
                found.extend(_found(line, match, compute))
                compute = 0
            elif kind := _mpi_call(line):
                found.append(_found_call(line, match, kind, compute))
                within[computation].append(found[-1])
                compute = 0
            else:
                called = _called(line)
                calls = [within[name] for name in called]
                if match["op"] == "conditional" and _alike(calls):
                    others.update(id(call) for branch in calls[1:] for call in branch)
                    calls = calls[:1]
                within[computation] += itertools.chain(*calls)
                if match["op"] in _HEAVY or heavy.intersection(called):
                    heavy.add(computation)
                    compute += 1
    return found if every_device else [each for each in found if id(each) not in others]


def _called(line: str) -> list[str]:
    """Names of the computations that an instruction runs; of a conditional its branches, in order."""
    names = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
        names += [name.strip(" %") for name in branches.split(",")]
    return names


def _alike(branches: Sequence[Sequence[FoundCollective]]) -> bool:
    """Whether all branches make the same MPI calls: those of a switch over devices do."""
    made = [[(call.kind, call.arrays) for call in branch] for branch in branches]
    return len(made) > 1 and bool(made[0]) and all(calls == made[0] for calls in made)


def _found(line: str, match: re.Match[str], compute: int) -> Iterator[FoundCollective]:
    kind, started = _COLLECTIVE.match(match["op"]).groups()  # type: ignore[union-attr]
    groups = parse_groups(line)
    pairs = parse_pairs(line)
    size = max((len(group) for group in groups), default=0)
    if size != 1 and (pairs or kind != "collective-permute"):
        arrays = _arrays(match["shape"], kind, started=bool(started), size=size)
        yield FoundCollective(kind, groups, arrays, compute, match["name"], _op_name(line), pairs)


def _mpi_call(line: str) -> str | None:
    target = _TARGET.search(line)
    return _MPI_CALLS.get(target[1]) if target else None


def _found_call(line: str, match: re.Match[str], kind: str, compute: int) -> FoundCollective:
    arrays = tuple(array for array in _arrays(match["shape"], "", started=False, size=0) if array[0] != "token")
    return FoundCollective(kind, frozenset(), arrays, compute, match["name"], _op_name(line), transport="mpi")


def _op_name(line: str) -> str:
    match = re.search(r'op_name="([^"]*)"', line)
    return match[1] if match else ""


def _arrays(shape: str, kind: str, *, started: bool, size: int) -> tuple[tuple[str, int], ...]:
    arrays = [
        (_DTYPES.get(dtype, dtype), math.prod(int(n) for n in dims.split(",") if n))
        for dtype, dims in _ARRAY.findall(shape)
    ]
    if started and kind == "collective-permute" and arrays[2:] and set(arrays[2:]) == {("uint32", 1)}:
        arrays = arrays[:2]  # the GPU's backend adds state of its own behind the operand and the result
    if started and kind != "all-reduce":
        # An asynchronous start yields its operands, then its results (all-reduce only the results).
        arrays = arrays[len(arrays) // 2 :]
    if kind == "all-to-all" and len(arrays) == size:
        # A backend without an all-to-all of one array gives each receiver an operand of its own.
        arrays = [(arrays[0][0], sum(elements for _, elements in arrays))]
    if kind == "reduce-scatter":
        arrays = [(dtype, elements * size) for dtype, elements in arrays]
    return tuple(arrays)
