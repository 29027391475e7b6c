"""What a timeline needs to know of a compiled program: its collectives, their buckets, and the mesh axes they span."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxnet.comm import HOST, FoundCollective, collectives_in

_COMPUTATION = re.compile(r"^\s*(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\w=\{?(%[\w.\-]+(?:, ?%[\w.\-]+)*)")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]")
BUCKET_SCOPE = re.compile(r"(?:bucket|scatter|gather)_(\d+)$")


@dataclass(frozen=True)
class TracedProgram:
    """What a timeline needs of a compiled program.

    Attributes:
        name: the name of the HLO module, such as 'jit_step'.
        collectives: by the instruction's name.
        enclosing: names of loops, calls and branches that contain a collective: neither compute nor communication.
        devices: how many devices its collectives join, over all processes; 0 if the program does not say.
        axis_sizes: those of the mesh, if the program names it (JAX 0.12 does, 0.10 does not).
    """

    name: str
    collectives: dict[str, FoundCollective]
    enclosing: frozenset[str]
    devices: int
    axis_sizes: dict[str, int]


def read_program(hlo: str) -> TracedProgram:
    """Read an optimized HLO text."""
    found = {collective.name: collective for collective in collectives_in(hlo, every_device=True)}
    mesh = _MESH.search(hlo)
    return TracedProgram(
        name=hlo.removeprefix("HloModule ").partition(",")[0],
        collectives=found,
        enclosing=_enclosing(hlo, found),
        devices=len({place for each in found.values() for group in each.groups or each.pairs for place in group}),
        axis_sizes={name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])} if mesh else {},
    )


def _enclosing(hlo: str, collectives: Mapping[str, FoundCollective]) -> frozenset[str]:
    # HLO text defines a computation before those that call it, so one pass finds calls of any depth.
    holding, enclosing, computation = set[str](), set[str](), ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
        elif match := _INSTRUCTION.match(line):
            called = {name for names in _CALLED.findall(line) for name in re.findall(r"[\w.\-]+", names)}
            if called & holding:
                enclosing.add(match[1])
            if match[1] in collectives or called & holding:
                holding.add(computation)
    return frozenset(enclosing)


def message_bytes(found: FoundCollective) -> int:
    """Return the bytes of the whole message, all arrays together."""
    return sum(elements * np.dtype(dtype).itemsize for dtype, elements in found.arrays)


def bucket_of(found: FoundCollective) -> int | None:
    """Return the number of the bucket that a collective carries, from the scope that `bucketed` gives it, or None.

    Of buckets within buckets, as the factors of `by_bucket(powersgd(...), ...)` are, it is the outer one's.

    >>> scope = "jit(f)/shard_map/bucket_3/psum"
    >>> reduce = FoundCollective("all-reduce", frozenset(), (("float32", 8),), 0, "psum.1", scope)
    >>> bucket_of(reduce), scope_of(reduce)
    (3, 'bucket_3')
    """
    numbers = [int(match[1]) for part in scope_of(found).split("/") if (match := BUCKET_SCOPE.match(part))]
    return numbers[0] if numbers else None


def scope_of(found: FoundCollective) -> str:
    """Return the named scopes in which a collective was traced, without enclosing functions and the operation."""
    parts = found.op_name.split("/")[:-1]
    return "/".join(part for part in parts if part != "shard_map" and not part.startswith(("jit(", "pmap(")))


def axes_of(found: FoundCollective, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes that a collective spans: those along which the devices of a group differ.

    Empty if its devices are not in this mesh. An MPI collective spans the hosts, of which the mesh then has only one.

    >>> groups = frozenset({frozenset({0, 2}), frozenset({1, 3})})
    >>> axes_of(FoundCollective("all-reduce", groups, (("float32", 8),), 0, "psum.1", ""), {"host": 2, "device": 2})
    ('host',)
    """
    if found.transport == "mpi":
        return (HOST,)
    together = [set(group) for group in found.pairs or found.groups] or [set(range(math.prod(axis_sizes.values())))]
    sizes = list(axis_sizes.values())
    if max(map(max, together)) >= math.prod(sizes):
        return ()
    spanned = np.zeros(len(sizes), bool)
    for group in together:
        places = np.array(np.unravel_index(sorted(group), sizes))
        spanned |= places.min(axis=1) != places.max(axis=1)
    return tuple(axis for axis, spans in zip(axis_sizes, spanned, strict=True) if spans)
