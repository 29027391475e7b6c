"""Check that a compiled program has the collectives that a plan asked for.

A compiler may merge, split, widen or move them; option names change between versions, and an option that no
longer exists is usually ignored in silence. So `verify` compares the plan with the optimized program itself.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxnet.comm.found import FoundCollective, collectives_in
from jaxnet.comm.groups import Groups, Pairs, groups_over, pairs_over
from jaxnet.comm.reducer import Collective, traced_collective

_Key = tuple[str, str, Groups | Pairs]  # transport, kind, members
_TILE = 1024  # elements; a TPU fills a message with zeros to a multiple of it
_PACKED = ("uint8", "uint16", "uint32")  # words of a message of another dtype
_TILE_BYTES = 4096


@dataclass(frozen=True)
class Check:
    """The collectives of a compiled program, compared with those planned.

    Attributes:
        planned: the collectives of the plan.
        missing: planned, and not in the program.
        found: all collectives of the program, in schedule order.
        extra: those of `found` that were not planned: BatchNorm's statistics if they are global, or one merged
            collective instead of several planned ones.
        recoded: planned, and in the program in other words: two 16-bit numbers in a word of 32, a smaller type,
            filled with zeros to a tile, or an all-reduce over TPU slices as XLA's own stages.
        places: for each of `planned` its place in `found`; None: missing or repeated.
        repeated: places in `planned` of those that the compiler left out, as another sends the same numbers.
    """

    planned: tuple[Collective, ...]
    missing: tuple[Collective, ...]
    found: tuple[FoundCollective, ...]
    extra: tuple[FoundCollective, ...]
    recoded: tuple[tuple[Collective, FoundCollective], ...] = ()
    places: tuple[int | None, ...] = ()
    repeated: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every planned collective is in the program, by itself."""
        return not self.missing

    def explain(self) -> str:
        """One line: what is missing, and what the program has instead or besides."""
        if self.ok:
            return (
                f"all {len(self.planned)} planned collectives are in the compiled program"
                f"{self._in_other_words()}{self._repeats()}{self._besides()}"
            )
        got = ", ".join(_describe(found) for found in self.extra) or "nothing else"
        return (
            f"the compiled program lacks {len(self.missing)} of {len(self.planned)} planned collectives (first: "
            f"{self.missing[0].kind} of {self.missing[0].elements} {self.missing[0].dtype} over "
            f"{'+'.join(self.missing[0].axes)}); not planned but there: {got}"
        )

    def _repeats(self) -> str:
        if not self.repeated:
            return ""
        return f", {len(self.repeated)} of them as another one, which sends the same numbers"

    def _besides(self) -> str:
        if not self.extra:
            return ""
        return f"; it has {len(self.extra)} more, which nothing planned (first: {_describe(self.extra[0])})"

    def _in_other_words(self) -> str:
        if not self.recoded:
            return ""
        planned, found = self.recoded[0]
        return (
            f", {len(self.recoded)} of them in other words (first: {planned.kind} of {planned.elements} "
            f"{planned.dtype} as {_describe(found)})"
        )


def _describe(found: FoundCollective) -> str:
    arrays = " + ".join(f"{elements} {dtype}" for dtype, elements in found.arrays[:4])
    more = f" + {len(found.arrays) - 4} more" if len(found.arrays) > 4 else ""
    return f"{found.kind} of {arrays}{more}"


def verify(
    hlo: str, planned: Iterable[Collective], axis_sizes: Mapping[str, int], traced: ClosedJaxpr | None = None
) -> Check:
    """Compare a compiled program with a plan (law L6).

    Args:
        hlo: `jax.jit(f).lower(...).compile().as_text()`.
        planned: `as_sent(reducer.plan(shapes, axis_sizes).collectives, platform)`, and what else the step is known
            to send.
        axis_sizes: the mesh's `shape`, axes in the mesh's order.
        traced: `jax.jit(f).trace(...).jaxpr`, where known. Of equal collectives a compiler makes one: so two BatchNorms
            whose results are added have equal gradients of their biases. Without it such a one is missing.
    """
    planned = tuple(planned)
    found = tuple(collectives_in(hlo))
    slice_size = max((each.partitions for each in found), default=1)
    slice_size = slice_size if slice_size < math.prod(axis_sizes.values()) else 1
    left = defaultdict[_Key, list[FoundCollective]](list)
    for each in _strangers_last(found, planned, axis_sizes, slice_size):
        if len(each.arrays) == 1:
            left[_found_key(each, axis_sizes)].append(each)
    recoded: list[tuple[Collective, FoundCollective]] = []
    places: list[int | None] = [None] * len(planned)
    place_of = {id(each): place for place, each in enumerate(found)}

    # Those that the compiler may leave out come last: one of 1,024 elements would take the place of one of 1,000, which
    # is filled up to that.
    may_repeat = _that_may_repeat(planned, traced)
    for indices in ([index for index in range(len(planned)) if index not in may_repeat], may_repeat):
        # 1. Of the same kind, members and message.
        unmatched = []
        for index in indices:
            collective = planned[index]
            same = left[_planned_key(collective, axis_sizes, slice_size)]
            message = (collective.dtype, collective.elements)
            exact = next((each for each in same if _message(each, collective.size) == message), None)
            if exact is None:
                unmatched.append(index)
            else:
                places[index] = place_of[id(exact)]
                same.remove(exact)
        # 2. Of what is left, the same message in other words.
        for index in sorted(unmatched, key=lambda index: -planned[index].bytes):
            collective = planned[index]
            same = left[_planned_key(collective, axis_sizes, slice_size)]
            others = next(([each] for each in same if _in_other_words(collective, each)), [])
            others = others or (_own_stages(collective, left, axis_sizes, slice_size) if slice_size > 1 else [])
            if others:
                places[index] = place_of[id(others[0])]
                recoded.append((collective, others[0]))
            for each in others:
                left[_found_key(each, axis_sizes)].remove(each)
    rest = {id(each) for same in left.values() for each in same}
    without = [index for index, place in enumerate(places) if place is None]
    return Check(
        planned,
        missing=tuple(planned[index] for index in without if index not in may_repeat),
        found=found,
        extra=tuple(each for each in found if len(each.arrays) != 1 or id(each) in rest),
        recoded=tuple(recoded),
        places=tuple(places),
        repeated=tuple(index for index in without if index in may_repeat),
    )


# ---- Equal collectives in what a compiler is given -----------------------------------------------------------------

_Message = tuple[str, frozenset[str], str, int]  # kind, axes, dtype, elements


def _that_may_repeat(planned: Sequence[Collective], traced: ClosedJaxpr | None) -> list[int]:
    """Of equal messages the places in the plan, the last ones, of as many as have the operands of an earlier one."""
    repeats = _repeats(traced.jaxpr) if traced is not None else Counter[_Message]()
    found = []
    for index in reversed(range(len(planned))):
        collective = planned[index]
        message = (collective.kind, frozenset(collective.axes), collective.dtype, collective.elements)
        if repeats[message] > 0:
            repeats[message] -= 1
            found.append(index)
    return found[::-1]


def _repeats(jaxpr: Jaxpr) -> Counter[_Message]:
    """How many collectives of each message have the same operands as an earlier one.

    Every value gets a number, and two values the same one where the same operation makes them of the same operands.

        b = mul a a   ->  1 = mul 0 0
        c = mul a a   ->  1
        d = psum b    ->  2 = psum 1
        e = psum c    ->  2, again
    """
    repeats: Counter[_Message] = Counter()
    fresh = count()
    known: dict[Hashable, list[int]] = {}

    def number(jaxpr: Jaxpr, given: Sequence[int]) -> list[int]:
        of: dict[Any, int] = dict(zip(jaxpr.invars, given, strict=True))
        of.update((var, next(fresh)) for var in jaxpr.constvars)

        def numbered(atom: Any) -> int:
            if not isinstance(atom, Literal):
                return of[atom]
            value = np.asarray(atom.val)  # by its bytes: 0.0 is not -0.0
            return known.setdefault(("literal", atom.aval, value.tobytes()), [next(fresh)])[0]

        for eqn in jaxpr.eqns:
            operands = [numbered(atom) for atom in eqn.invars]
            inner = _inlined(eqn)
            if inner is not None:
                results = number(inner, operands)
            elif eqn.primitive.name == "optimization_barrier":  # says when, and changes no value
                results = operands
            else:
                params = tuple((name, _as_key(value)) for name, value in sorted(eqn.params.items()))
                key = (eqn.primitive, params, tuple(operands))
                if key in known:
                    repeats.update(_messages(eqn))
                elif eqn.primitive.name == "shard_map":  # what it takes is in there a part of it
                    body: Jaxpr = eqn.params["jaxpr"]
                    number(body, [next(fresh) for _ in body.invars])
                results = known.setdefault(key, [next(fresh) for _ in eqn.outvars])
            of.update(zip(eqn.outvars, results, strict=True))
        return [numbered(atom) for atom in jaxpr.outvars]

    number(jaxpr, [next(fresh) for _ in jaxpr.invars])
    return repeats


def _inlined(eqn: JaxprEqn) -> Jaxpr | None:
    """The operations that an equation stands for, each once and on its operands; None if it is an operation."""
    if eqn.primitive.name not in ("jit", "closed_call", "remat2", "custom_jvp_call"):
        return None
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner


def _messages(eqn: JaxprEqn) -> Iterator[_Message]:
    if traced := traced_collective(eqn):
        kind, axes = traced
        for sent, got in zip(eqn.invars, eqn.outvars, strict=True):
            elements = max(math.prod(each.aval.shape) for each in (sent, got))  # type: ignore[attr-defined]
            yield kind, frozenset(axes), sent.aval.dtype.name, elements  # type: ignore[attr-defined]


def _as_key(value: Any) -> Hashable:
    """What equals for equal parameters; what cannot be hashed equals itself alone."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


# ---- The same message in other words --------------------------------------------------------------------------------


def _strangers_last(
    found: Sequence[FoundCollective], planned: Sequence[Collective], axis_sizes: Mapping[str, int], slice_size: int
) -> list[FoundCollective]:
    """All, those last that nothing planned and those that carry on such ones: they may be XLA's own stages.

    all-reduce 53,248 in the slices    not planned, but for a sum of 53,122 over all
    all-reduce 4,096 between them      carries it on; a planned one is equal, and must not be found here
    """
    known = {(_planned_key(each, axis_sizes, slice_size), each.dtype, each.elements) for each in planned}
    strange = set[str]()
    for each in found:
        message = ((_found_key(each, axis_sizes), *array) for array in each.arrays)
        if each.of in strange or not known.issuperset(message):
            strange.add(each.name)
    return sorted(found, key=lambda each: each.name in strange)


def _in_other_words(collective: Collective, found: FoundCollective) -> bool:
    """Whether a message of the same kind and members is the planned one: packed, narrower, or filled up to a tile."""
    dtype, elements = _message(found, collective.size)
    size = jnp.dtype(dtype).itemsize
    filled = elements * size - collective.bytes
    may_fill = found.transport == "dcn" or (dtype.startswith("uint") and dtype != collective.dtype)
    packed = 0 <= filled < (_TILE * size if may_fill else 1)
    narrower = elements == collective.elements and size < jnp.dtype(collective.dtype).itemsize
    return packed or narrower


def _message(found: FoundCollective, devices: int) -> tuple[str, int]:
    """The dtype and elements of a collective of one array, as a plan counts them."""
    [(dtype, elements)] = found.arrays
    # Of what is gathered between slices, the text has what one device sends.
    return dtype, elements * devices if (found.transport, found.kind) == ("dcn", "all-gather") else elements


def _own_stages(
    collective: Collective,
    left: Mapping[_Key, Sequence[FoundCollective]],
    axis_sizes: Mapping[str, int],
    slice_size: int,
) -> list[FoundCollective]:
    """A collective over all devices of several slices, as XLA cuts it; empty if it is not there.

    all-reduce    in the slices; between them, whole or of shards; of shards in the slices again, to all
    all-gather    of shards between the slices; in them
    all-to-all    one, between slices and in them
    """
    if collective.size != math.prod(axis_sizes.values()):
        return []
    rest = [each for same in left.values() for each in same]
    shifts = {each.name: each.of for each in rest if each.kind == "collective-permute"}  # of rows, to cut shards

    def carries_on(before: FoundCollective, transport: str, kind: str) -> list[FoundCollective]:
        """The collective that sends on the result of another."""
        sends_on = [each for each in rest if shifts.get(each.of, each.of) == before.name]
        return [each for each in sends_on if (each.transport, each.kind) == (transport, kind)][:1]

    def begins(transport: str, kinds: tuple[str, ...], size: int, tiles: int) -> list[FoundCollective]:
        """Those of so many bytes, or of more that fill so many tiles; the smallest first."""
        fit = []
        for each in rest:
            [(dtype, _)] = each.arrays
            may_be = each.transport == transport and each.kind in kinds and dtype in (collective.dtype, *_PACKED)
            if may_be and 0 <= _bytes(each) - size < _TILE_BYTES * tiles:
                fit.append(each)
        return sorted(fit, key=_bytes)

    if collective.kind == "all-to-all":
        return begins("dcn", ("all-to-all",), collective.bytes, collective.size)[:1]
    if collective.kind == "all-gather":
        firsts = begins("dcn", ("all-gather",), -(-collective.bytes // collective.size), 4)
        return next(([first, *back] for first in firsts if (back := carries_on(first, "xla", "all-gather"))), [])
    if collective.kind == "all-reduce":
        for inside in begins("xla", ("reduce-scatter", "all-reduce"), collective.bytes, slice_size):
            if across := carries_on(inside, "dcn", "all-reduce"):
                return [*across, inside, *carries_on(across[0], "xla", "all-gather")]
    return []


def _bytes(found: FoundCollective) -> int:
    return sum(elements * jnp.dtype(dtype).itemsize for dtype, elements in found.arrays)


def _planned_key(collective: Collective, axis_sizes: Mapping[str, int], slice_size: int) -> _Key:
    if collective.transport == "mpi":
        # The program of one rank names only its own partners.
        return "mpi", collective.kind, frozenset()
    is_permute = collective.kind == "collective-permute"
    pairs = pairs_over(collective.axes, axis_sizes, collective.pairs) if is_permute else frozenset()
    groups = frozenset() if is_permute else groups_over(collective.axes, axis_sizes, collective.groups)
    # A program for several TPU slices numbers the devices of one; what goes between slices names no groups.
    members = [tuple(each) for each in (*pairs, *groups)]
    if slice_size > 1:
        if all(len({place // slice_size for place in each}) == len(each) for each in members):
            return "dcn", collective.kind, frozenset()
        if all(len({place // slice_size for place in each}) == 1 for each in members):
            pairs = frozenset((a % slice_size, b % slice_size) for a, b in pairs)
            groups = frozenset(frozenset(place % slice_size for place in group) for group in groups)
    return "xla", collective.kind, pairs or groups


def _found_key(found: FoundCollective, axis_sizes: Mapping[str, int]) -> _Key:
    everyone = frozenset() if found.transport != "xla" else groups_over(tuple(axis_sizes), axis_sizes)
    return found.transport, found.kind, found.pairs or found.groups or everyone
