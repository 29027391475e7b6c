"""The collectives of a compiled program, in every spelling of the compilers, and what is computed while they travel.

A collective is one instruction, such as `all-reduce`, or several, between which others compute:

    all-reduce-start, all-reduce-done           GPUs; permutes of TPUs
    async-start calls=COMPUTATION, async-done   the general form; also call-start and call-done
    fusions, each of which calls a part of it   TPUs: a start, parts with a product beside them, a done; one chain_id
    a fusion that calls all-reduce-scatter      TPUs: a reduce-scatter, spelled as an all-reduce and a slice of it
    send and recv, send-done and recv-done      between TPU slices, in a program that numbers one slice's devices
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from jaxnet.comm.groups import Groups, Pairs, parse_groups, parse_pairs
from jaxnet.comm.hlo import FREE, Computation, Instruction, Program, programs_in
from jaxnet.comm.reducer import CollectiveKind

_KINDS: dict[str, CollectiveKind] = {kind: kind for kind in get_args(CollectiveKind)}
_COLLECTIVE = re.compile(rf"^({'|'.join(_KINDS)})(-start)?$")
_LATER_PART = re.compile(r"-(done|update)$")
_TARGET = r'custom_call_target="(\w+)"'
_CHAIN = r'chain_id="(\d+)"'
_RENDEZVOUS = r'_xla_host_transfer_rendezvous="([^"]*)"'
_BETWEEN_SLICES = r'_xla_megascale_transfer_type="(\w+)"'
_MPI_CALLS: dict[str, CollectiveKind] = {"mpi_allreduce_ffi": "all-reduce", "mpi_sendrecv_ffi": "collective-permute"}
_SCATTERS = "all-reduce-scatter"  # how computations of TPUs are named
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
        transport: 'xla'; 'mpi': a call of the MPI library, which names no groups; 'dcn': between TPU slices.
        start: its place in `schedule(program)`.
        done: the place at which its result is there: `start` again, unless something may run meanwhile.
        compute_during: how many operations of those between the two compute: loops, fusions, library calls.
        partitions: how many devices the program numbers; of one for several TPU slices, those of a slice.
        of: the name of the collective whose result it carries on, without a product in between; or ''.
    """

    kind: CollectiveKind
    groups: Groups
    arrays: tuple[tuple[str, int], ...]
    compute_before: int
    name: str
    op_name: str
    pairs: Pairs = frozenset()
    transport: str = "xla"
    start: int = 0
    done: int = 0
    compute_during: int = 0
    partitions: int = 1
    of: str = ""


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
    compute = 0
    for program in programs_in(hlo):
        here, compute = _in_program(program, schedule(program, every_device=every_device), compute)
        found += here
    return found


# ---- The schedule: the instructions of a program in the order in which a device meets them ------------------------


def schedule(program: Program, *, every_device: bool = False) -> Computation:
    """The entry's instructions, with those of loops, branches and calls that hold a collective in their place, once.

    See `collectives_in` for `every_device`.
    """
    holds = _that_hold(program, lambda each: _kind(each) is not None)

    def expanded(computation: Computation) -> Iterator[Instruction]:
        for each in computation:
            bodies = [list(expanded(program.computations[name])) for name in each.called if name in holds]
            if not bodies or each.op not in ("while", "conditional", "call"):
                yield each
            elif each.op == "conditional" and not every_device and _alike(bodies, len(each.called)):
                yield from bodies[0]
            else:
                yield from itertools.chain(*bodies)

    return tuple(expanded(program.entry))


def _alike(branches: Sequence[Sequence[Instruction]], count: int) -> bool:
    """Whether all of so many branches make the same MPI calls: those of a switch over devices do."""
    made = [[(_mpi_kind(each), each.arrays) for each in branch if _mpi_kind(each)] for branch in branches]
    return len(made) == count > 1 and bool(made[0]) and all(calls == made[0] for calls in made)


def _that_hold(program: Program, wanted: Callable[[Instruction], bool]) -> frozenset[str]:
    """Names of the computations that have such an instruction, or call one that has."""
    callers = defaultdict[str, set[str]](set)
    waiting = []
    for name, computation in program.computations.items():
        for each in computation:
            for called in each.called:
                callers[called].add(name)
            if wanted(each):
                waiting.append(name)
    found = set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += callers[name]
    return frozenset(found)


# ---- From the schedule to collectives -----------------------------------------------------------------------------


def _in_program(program: Program, steps: Computation, compute: int) -> tuple[list[FoundCollective], int]:
    """The collectives of a schedule, before which stand so many heavy operations, and how many stand behind them."""
    chains = {name: _chain(computation) for name, computation in program.computations.items()}
    heavy = _that_hold(program, lambda each: each.op in _HEAVY and not _mpi_kind(each))
    products = _that_hold(program, lambda each: each.op in ("dot", "convolution"))
    found: list[FoundCollective] = []
    under_way: dict[str, int] = {}  # by the name of a part, or what all parts name: the place in `found`
    origin: dict[str, str] = {}  # by the name of an instruction: of the collective whose result it carries on
    computed = [0]  # of each place: the operations before it that compute
    for place, step in enumerate(steps):
        chain = next((chains[name] for name in step.called if chains.get(name)), None)
        joined = _joined(step, chain)
        known = next((under_way[name] for name in joined if name in under_way), None)
        collective = None
        if known is not None:
            # A later part of one that is under way; its last one, as far as is known.
            during = computed[place] - computed[found[known].start + 1]
            found[known] = replace(found[known], done=place, compute_during=during)
            if step.op == "send":  # behind its `recv`; a message is what is sent
                of = next((origin[name] for name in step.operands if name in origin), "")
                found[known] = replace(found[known], arrays=_described(step).arrays, of=of)
            under_way[step.name] = known
        elif (collective := _collective(program, step)) is not None:
            under_way.update(dict.fromkeys([step.name, *joined], len(found)))
            of = next((origin[name] for name in step.operands if name in origin), "")
            found.append(
                replace(
                    collective, compute_before=compute, start=place, done=place, partitions=program.partitions, of=of
                )
            )
            compute = 0
        # A part may have a product beside it.
        is_part = known is not None or collective is not None
        if is_part:
            origin[step.name] = found[len(found) - 1 if known is None else known].name
        elif step.op not in ("dot", "convolution") and not products.intersection(step.called):
            origin.update((step.name, origin[name]) for name in step.operands[::-1] if name in origin)
        waits = step.op in FREE or _LATER_PART.search(step.op)
        works = bool(products.intersection(step.called)) if is_part else not waits
        computed.append(computed[-1] + works)
        if not is_part or chain:
            compute += step.op in _HEAVY or bool((products if chain else heavy).intersection(step.called))
    return [each for each in found if _moves(each)], compute


def _joined(step: Instruction, chain: str | None) -> tuple[str, ...]:
    """What names the collective of which an instruction is one of several parts."""
    if _LATER_PART.search(step.op):
        return step.operands
    if step.op in ("send", "recv") and (rendezvous := step.attribute(_RENDEZVOUS)):
        return (f"rendezvous {rendezvous}",)
    return () if chain is None else (f"chain {chain}",)


def _chain(computation: Computation) -> str | None:
    """The chain of which a TPU's computation holds a part, or None."""
    chains = (each.attribute(_CHAIN) for each in computation if _COLLECTIVE.match(each.op))
    return next((chain for chain in chains if chain), None)


def _kind(step: Instruction) -> CollectiveKind | None:
    """The kind of collective that an instruction is by itself, or begins."""
    if match := _COLLECTIVE.match(step.op):
        return _KINDS.get(match[1])
    if step.op in ("send", "recv") and (name := step.attribute(_BETWEEN_SLICES)):
        return "collective-permute" if name == "ONE_TO_ONE" else _KINDS.get(name.lower().replace("_", "-"))
    return _mpi_kind(step)


def _mpi_kind(step: Instruction) -> CollectiveKind | None:
    target = step.attribute(_TARGET) if step.op == "custom-call" else None
    return _MPI_CALLS.get(target) if target else None


def _collective(program: Program, step: Instruction) -> FoundCollective | None:
    """What an instruction is, or begins; one that calls the collective has its name in the program."""
    if step.op in ("async-start", "call-start", "fusion"):
        inner = itertools.chain(*(program.computations.get(name, ()) for name in step.called))
        begun = next((each for each in inner if _COLLECTIVE.match(each.op)), None)
        found = replace(_described(begun), name=step.name) if begun else None
        return _as_reduce_scatter(program, step, found) if found else None
    return _described(step) if _kind(step) else None


def _as_reduce_scatter(program: Program, step: Instruction, found: FoundCollective) -> FoundCollective:
    """A TPU's all-reduce inside a computation that keeps a shard of it: the message is what goes in."""
    [name, *_] = step.called
    if found.kind != "all-reduce" or not name.startswith(_SCATTERS):
        return found
    [given] = next(each for each in program.computations[name] if each.op == "parameter").arrays
    return replace(found, kind="reduce-scatter", arrays=((given[0], math.prod(given[1])),))


def _described(step: Instruction) -> FoundCollective:
    kind, groups, pairs = _kind(step), parse_groups(step.line), parse_pairs(step.line)
    assert kind is not None
    arrays = [(dtype, math.prod(dims)) for dtype, dims in step.arrays]
    transport = "mpi" if _mpi_kind(step) else "xla" if _COLLECTIVE.match(step.op) else "dcn"
    if transport == "xla":
        size = max((len(group) for group in groups), default=0)
        started = step.op.endswith("-start")
        if started and (kind != "all-reduce" or step.shape.startswith("((")):
            arrays = _results(arrays, kind)
        arrays = _message(arrays, kind, size)
    else:
        arrays = arrays[:1] if transport == "dcn" else [array for array in arrays if array[0] != "token"]
    return FoundCollective(kind, groups, tuple(arrays), 0, step.name, step.op_name, pairs, transport)


def _results(arrays: list[tuple[str, int]], kind: str) -> list[tuple[str, int]]:
    """Of the arrays of an asynchronous start, which are its operands and then its results, the results.

    That of an all-reduce has the results alone before JAX 0.12, and then both: ((operands), results).
    """
    if kind == "collective-permute" and arrays[2:] and set(arrays[2:]) == {("uint32", 1)}:
        arrays = arrays[:2]  # the GPU's backend adds state of its own behind the operand and the result
    return arrays[len(arrays) // 2 :]


def _message(arrays: list[tuple[str, int]], kind: str, size: int) -> list[tuple[str, int]]:
    """What travels, of the arrays of an instruction's results."""
    if kind == "all-to-all" and len(arrays) == size:
        # A backend without an all-to-all of one array gives each receiver an operand of its own.
        arrays = [(arrays[0][0], sum(elements for _, elements in arrays))]
    if kind == "reduce-scatter":
        arrays = [(dtype, elements * size) for dtype, elements in arrays]
    return arrays


def _moves(found: FoundCollective) -> bool:
    """Whether it is among more than one device, as far as is said."""
    if found.transport != "xla":
        return True
    alone = max((len(group) for group in found.groups), default=0) == 1
    return not alone and (bool(found.pairs) or found.kind != "collective-permute")
