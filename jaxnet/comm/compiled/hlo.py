"""Reading the collectives out of an optimized HLO text."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxnet.comm.compiled.groups import Groups, Pairs, parse_groups, parse_pairs

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
class Found:
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


def collectives_in(hlo: str, *, every_device: bool = False) -> list[Found]:
    """The collectives of a compiled program (`jax.jit(f).lower(...).compile().as_text()`), in schedule order.

    Sizes count the whole message, as `Collective.elements` does. Collectives over groups of one device
    move nothing and are left out. Those in a loop, or in a branch of a conditional, count once each, as in a plan. Of
    several programs, one text behind the other, what one computes counts for the next.

    Args:
        hlo: the text.
        every_device: give the MPI calls of all devices of this process. Each makes its own, in a branch of a
            conditional over devices; otherwise those of the first stand for all.
    """
    found: list[Found] = []
    others: set[int] = set()
    within = defaultdict[str, list[Found]](list)  # MPI calls of a computation, those in what it calls included
    compute, before, heavy, computation = 0, 0, set[str](), ""
    for line in hlo.splitlines():
        # Computations stand before those that call them, the entry last.
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


def _alike(branches: Sequence[Sequence[Found]]) -> bool:
    """Whether branches make the same MPI calls, as those of devices do, each with communicators of its own."""
    made = [[(call.kind, call.arrays) for call in branch] for branch in branches]
    return len(made) > 1 and bool(made[0]) and all(calls == made[0] for calls in made)


def _found(line: str, match: re.Match[str], compute: int) -> Iterator[Found]:
    kind, started = _COLLECTIVE.match(match["op"]).groups()  # type: ignore[union-attr]
    groups = parse_groups(line)
    pairs = parse_pairs(line)
    size = max((len(group) for group in groups), default=0)
    if size != 1 and (pairs or kind != "collective-permute"):
        arrays = _arrays(match["shape"], kind, started=bool(started), size=size)
        yield Found(kind, groups, arrays, compute, match["name"], _op_name(line), pairs)


def _mpi_call(line: str) -> str | None:
    target = _TARGET.search(line)
    return _MPI_CALLS.get(target[1]) if target else None


def _found_call(line: str, match: re.Match[str], kind: str, compute: int) -> Found:
    arrays = tuple(array for array in _arrays(match["shape"], "", started=False, size=0) if array[0] != "token")
    return Found(kind, frozenset(), arrays, compute, match["name"], _op_name(line), transport="mpi")


def _op_name(line: str) -> str:
    match = re.search(r'op_name="([^"]*)"', line)
    return match[1] if match else ""


def _arrays(shape: str, kind: str, *, started: bool, size: int) -> tuple[tuple[str, int], ...]:
    arrays = [
        (_DTYPES.get(dtype, dtype), math.prod(int(n) for n in dims.split(",") if n))
        for dtype, dims in _ARRAY.findall(shape)
    ]
    if started and kind == "collective-permute" and arrays[2:] and set(arrays[2:]) == {("uint32", 1)}:
        arrays = arrays[:2]  # what the GPU's backend keeps of it stands behind the operand and the result
    if started and kind != "all-reduce":
        # An asynchronous start yields its operands, then its results (all-reduce only the results).
        arrays = arrays[len(arrays) // 2 :]
    if kind == "all-to-all" and len(arrays) == size:
        # One operand for each receiver, where the backend has no all-to-all of one array.
        arrays = [(arrays[0][0], sum(elements for _, elements in arrays))]
    if kind == "reduce-scatter":
        arrays = [(dtype, elements * size) for dtype, elements in arrays]
    return tuple(arrays)
