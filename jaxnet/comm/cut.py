"""Cut a traced function into several programs, so that early results can be used before the last ones exist.

One program gives all its results when it ends. Cut where the gradients of a message are complete, each piece gives
them while the next one computes. Here `b` is wanted first, and `a` is made once though both results need it:

>>> import jax.numpy as jnp
>>> def function(x): a = 2 * x; b = a + 1; return [b, a * b]
>>> first, second = cut(function, [jax.ShapeDtypeStruct((), "float32")], [[0], [1]]).programs
>>> (first.reads, first.gives, first.results), (second.reads, second.gives, second.results)  # 0 is x, 1 a, 2 b
(((0,), (1, 2), (2,)), ((1, 2), (3,), (3,)))
>>> a, b = first.run(5.0)
>>> [product] = second.run(a, b)
>>> float(b), float(product)
(11.0, 110.0)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

PyTree = Any
_Atom = Var | Literal


@dataclass(frozen=True)
class PieceProgram:
    """One piece. Values have numbers: first the function's arguments, flat, then what the pieces give, in turn.

    Attributes:
        run: takes the values `reads`, gives the values `gives`; to be compiled with `jax.jit`.
        reads: numbers of what it takes.
        gives: numbers of what it gives.
        drops: numbers of the values that no later piece reads and no later group has; free them after this piece.
        results: numbers of the results of its group.
        turn: that of the last argument that it waits for (see `cut`).
    """

    run: Callable[..., Sequence[jax.Array]]
    reads: tuple[int, ...]
    gives: tuple[int, ...]
    drops: tuple[int, ...]
    results: tuple[int, ...]
    turn: int = 0


@dataclass(frozen=True)
class Pieces:
    """A function as programs that run one after the other.

    Attributes:
        programs: one a group, or several of which the last has its results.
        shapes: of all values, by number.
    """

    programs: tuple[PieceProgram, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]


def traced(function: Callable[..., PyTree], shapes: Sequence[PyTree]) -> ClosedJaxpr:
    """The operations of `function(*shapes)`, with those of the `jax.jit` functions that it calls.

    Such a call would be one operation, whose results are there together: all gradients, if a loss is one.

    >>> program = traced(lambda x: jax.jit(lambda a: (a + 1, a * 2))(x), [jax.ShapeDtypeStruct((), "float32")])
    >>> [eqn.primitive.name for eqn in program.eqns]
    ['add', 'mul']
    """
    closed = jax.make_jaxpr(function)(*shapes)
    names: dict[Var, _Atom] = {}
    eqns = list(_opened(closed.jaxpr.eqns, names))
    outputs = [_named(atom, names) for atom in closed.jaxpr.outvars]
    return ClosedJaxpr(closed.jaxpr.replace(eqns=eqns, outvars=outputs), closed.consts)


def _opened(eqns: Iterable[JaxprEqn], names: dict[Var, _Atom]) -> Iterator[JaxprEqn]:
    """The operations, under new names, which are added to `names`: a function may be called twice."""
    for eqn in eqns:
        given = [_named(atom, names) for atom in eqn.invars]
        called = eqn.params["jaxpr"] if eqn.primitive.name == "jit" else None
        if called is None or called.consts:
            fresh = [Var(var.aval) for var in eqn.outvars]
            yield eqn.replace(invars=given, outvars=fresh)
            names.update(zip(eqn.outvars, fresh, strict=True))
        else:
            own = dict(zip(called.jaxpr.invars, given, strict=True))
            yield from _opened(called.jaxpr.eqns, own)
            results = (_named(atom, own) for atom in called.jaxpr.outvars)
            names.update(zip(eqn.outvars, results, strict=True))


def _named(atom: _Atom, names: Mapping[Var, _Atom]) -> _Atom:
    return atom if isinstance(atom, Literal) else names.get(atom, atom)


def cut(
    function: Callable[..., Sequence[jax.Array]],
    shapes: Sequence[PyTree],
    groups: Sequence[Sequence[int]],
    turns: Sequence[int] | None = None,
    *,
    apart: bool = False,
) -> Pieces:
    """Cut `function(*args) -> results` so that piece i ends when all results of group i exist.

    Law: the pieces, run in turn, compute what the function does.

    An operation belongs to the first piece that needs it, so a piece computes only what its group waits for:
    of a layer's two products in backward, that of the weights comes before the one that goes further back, and the
    mean over microbatches of one group before that of the next. Only a reshape is repeated, in each piece that reads
    it. Operations that no result needs are left out. A loop or a call under `jax.checkpoint` is one operation.

    Args:
        function: gives a flat sequence of arrays.
        shapes: its arguments as `jax.ShapeDtypeStruct`.
        groups: places of results, in the order in which they are wanted; each result in one group.
        turns: of each argument, flat, when it is there: 0, 1, ... Then a group has a piece for each turn that it waits
            for, and none waits for an argument of a later turn.
        apart: cut what later groups need besides results from what a group needs for itself, which may then run later
            (see `programs_in_order`): of backward, the products that give the gradients of weights.
    """
    # 1. Trace. 2. Give each operation to the first group that needs it. 3. Number what passes between the pieces.
    closed = _own_reshapes(traced(function, shapes))
    outputs = closed.jaxpr.outvars
    if sorted(place for group in groups for place in group) != list(range(len(outputs))):
        raise ValueError(f"groups must hold each of the {len(outputs)} results once, got {groups}")
    wanted: list[Sequence[_Atom]] = [[outputs[place] for place in group] for group in groups]
    pieces = _by_need(closed.jaxpr.eqns, wanted)
    if apart:
        pieces, wanted = _apart(pieces, wanted)
    turns = [0] * len(closed.jaxpr.invars) if turns is None else turns
    pieces, wanted, of_pieces = _by_turn(closed.jaxpr, pieces, wanted, turns)
    return _numbered(closed, pieces, wanted, of_pieces)


def programs_in_order(programs: Sequence[PieceProgram]) -> list[PieceProgram]:
    """The same programs, to run in this order, in which each frees what none after it needs.

    Raises:
        ValueError: one of them comes before another whose values it reads.
    """
    made_later = {number for program in programs for number in program.gives}
    last: dict[int, int] = {}
    for place, program in enumerate(programs):
        made_later -= {*program.gives}
        if early := made_later & {*program.reads, *program.results}:
            raise ValueError(f"program {place} needs the values {sorted(early)}, which later ones give")
        last |= dict.fromkeys((*program.reads, *program.gives, *program.results), place)
    ends: dict[int, list[int]] = {}
    for number, place in last.items():
        ends.setdefault(place, []).append(number)
    return [replace(program, drops=tuple(ends.get(place, ()))) for place, program in enumerate(programs)]


def result_turns(
    function: Callable[..., Sequence[jax.Array]], shapes: Sequence[PyTree], turns: Sequence[int]
) -> list[int]:
    """Of each result the turn in which it can be there, given those of the arguments (see `cut`).

    >>> two = [jax.ShapeDtypeStruct((), "float32")] * 2
    >>> result_turns(lambda a, b: [a + 1, a * b], two, [1, 2])
    [1, 2]
    """
    jaxpr = traced(function, shapes).jaxpr
    at = _turns(jaxpr, turns)
    return [at.get(id(atom), 0) for atom in jaxpr.outvars]


def first_reads(function: Callable[..., PyTree], shapes: Sequence[PyTree]) -> list[int]:
    """Of each argument, flat, the place of the first operation that reads it; behind all others if none does.

    >>> first_reads(lambda a, b: b + 1 + a, [jax.ShapeDtypeStruct((), "float32")] * 2)
    [1, 0]
    """
    jaxpr = traced(function, shapes).jaxpr
    first: dict[int, int] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        for atom in eqn.invars:
            first.setdefault(id(atom), place)
    return [first.get(id(var), len(jaxpr.eqns)) for var in jaxpr.invars]


def _turns(jaxpr: Jaxpr, turns: Sequence[int]) -> dict[int, int]:
    """The turn of each value, by `id`: the latest of those that it is made from; 0 where it is not in the result."""
    at = {id(var): turn for var, turn in zip(jaxpr.invars, turns, strict=True)}
    for eqn in jaxpr.eqns:
        turn = max((at.get(id(atom), 0) for atom in eqn.invars), default=0)
        at.update((id(var), turn) for var in eqn.outvars)
    return at


def _by_turn(
    jaxpr: Jaxpr, pieces: Sequence[Sequence[JaxprEqn]], wanted: Sequence[Sequence[_Atom]], turns: Sequence[int]
) -> tuple[list[list[JaxprEqn]], list[Sequence[_Atom]], list[int]]:
    """Each piece's operations as a piece a turn, of which the last has the results; and the turn of each."""
    at, reached = _turns(jaxpr, turns), 0
    split: list[list[JaxprEqn]] = []
    results: list[Sequence[_Atom]] = []
    of_pieces: list[int] = []
    for eqns, atoms in zip(pieces, wanted, strict=True):
        by_turn: dict[int, list[JaxprEqn]] = {}
        read: dict[int, int] = {}  # the turn in which a value is read, by `id`
        for eqn in reversed(eqns):
            turn = max([reached, *(at.get(id(atom), 0) for atom in eqn.invars)])
            if eqn.primitive.name == "reshape":
                turn = read.get(id(eqn.outvars[0]), turn)  # it stands where it is read, see `_own_reshapes`
            read.update((id(atom), turn) for atom in eqn.invars)
            by_turn.setdefault(turn, []).insert(0, eqn)
        parts = sorted(by_turn) or [reached]
        split += [by_turn.get(turn, []) for turn in parts]
        results += [[]] * (len(parts) - 1) + [atoms]
        of_pieces += parts
        reached = parts[-1]
    return split, results, of_pieces


def _apart(
    pieces: Sequence[Sequence[JaxprEqn]], wanted: Sequence[Sequence[_Atom]]
) -> tuple[list[list[JaxprEqn]], list[Sequence[_Atom]]]:
    """Each piece as two: what later ones need besides results, if there is such, and the rest, with the results."""
    split: list[list[JaxprEqn]] = []
    results: list[Sequence[_Atom]] = []
    needed: set[int] = set()  # by what stands later, as `id`
    for eqns, atoms in zip(reversed(pieces), reversed(wanted), strict=True):
        own, shared = list[JaxprEqn](), list[JaxprEqn]()
        given = {id(atom) for atom in atoms}
        for eqn in reversed(eqns):
            if any(id(var) in needed and id(var) not in given for var in eqn.outvars):
                needed.update(id(atom) for atom in eqn.invars)
                shared.insert(0, eqn)
            else:
                own.insert(0, eqn)
        needed.update(id(atom) for eqn in own for atom in eqn.invars)
        split += [own, shared] if shared else [own]
        results += [atoms, []] if shared else [atoms]
    return split[::-1], results[::-1]


def _own_reshapes(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same, where each operation that reads a reshaped value has a reshape of its own, which costs nothing.

    Then one value passes between pieces in place of two, of which XLA would have to copy one.
    """
    reshapes = {eqn.outvars[0]: eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "reshape"}
    eqns: list[JaxprEqn] = []
    for eqn in closed.jaxpr.eqns:
        own = {atom: Var(atom.aval) for atom in eqn.invars if isinstance(atom, Var) and atom in reshapes}
        eqns += [reshapes[atom].replace(outvars=[fresh]) for atom, fresh in own.items()]
        eqns.append(eqn.replace(invars=[_named(atom, own) for atom in eqn.invars]) if own else eqn)
    return ClosedJaxpr(closed.jaxpr.replace(eqns=eqns), closed.consts)


def _by_need(eqns: Sequence[JaxprEqn], wanted: Sequence[Sequence[_Atom]]) -> list[list[JaxprEqn]]:
    """For each group, the operations that it needs and that no group before it has, in the function's order."""
    maker = {var: place for place, eqn in enumerate(eqns) for var in eqn.outvars}
    taken: set[int] = set()

    def makers(atoms: Iterable[_Atom]) -> Iterator[int]:
        return (maker[atom] for atom in atoms if isinstance(atom, Var) and atom in maker)

    def take(places: Iterable[int]) -> list[JaxprEqn]:
        """These operations and all that they depend on, as far as they are not taken yet."""
        found, waiting = [], list(places)
        while waiting:
            place = waiting.pop()
            if place not in taken:
                taken.add(place)
                found.append(place)
                waiting.extend(makers(eqns[place].invars))
        return [eqns[place] for place in sorted(found)]

    # No result needs an operation with an effect, such as a print: the last piece has it.
    effects = [place for place, eqn in enumerate(eqns) if eqn.effects]
    ends = [list(makers(atoms)) for atoms in wanted]
    return [take(places) for places in [*ends[:-1], ends[-1] + effects]]


def _numbered(
    closed: ClosedJaxpr,
    pieces: Sequence[Sequence[JaxprEqn]],
    wanted: Sequence[Sequence[_Atom]],
    turns: Sequence[int],
) -> Pieces:
    """The programs of these operations, and the numbers of what passes between them.

    Atoms are looked up by `id`, since a literal need not be hashable.
    """
    # 1. Number the arguments, then what each piece makes and a result or another piece needs. A result that no
    #    operation makes, a literal or a constant, counts as made by the piece of its group.
    values: list[_Atom] = list(closed.jaxpr.invars)
    number = {id(atom): place for place, atom in enumerate(values)}
    needed = {id(atom) for atoms in (*_reads(pieces), *wanted) for atom in atoms}
    constants = {id(var) for var in closed.jaxpr.constvars}
    gives, results = [], []
    for eqns, atoms in zip(pieces, wanted, strict=True):
        made: list[_Atom] = [var for eqn in eqns for var in eqn.outvars if id(var) in needed]
        made += [atom for atom in atoms if isinstance(atom, Literal) or id(atom) in constants]
        number.update((id(atom), place) for place, atom in enumerate(made, len(values)))
        gives.append(tuple(range(len(values), len(values) + len(made))))
        results.append(tuple(number[id(atom)] for atom in atoms))
        values += made
    # 2. What each piece reads, by number. Constants are part of a program.
    reads = [tuple(number[id(var)] for var in read if id(var) not in constants) for read in _reads(pieces)]
    # 3. The programs.
    programs = [
        PieceProgram(
            run=_function(closed, eqns, [values[n] for n in reads[place]], [values[n] for n in gives[place]]),
            reads=reads[place],
            gives=gives[place],
            drops=(),
            results=results[place],
            turn=turns[place],
        )
        for place, eqns in enumerate(pieces)
    ]
    return Pieces(tuple(programs_in_order(programs)), tuple(_shape(atom) for atom in values))


def _shape(atom: _Atom) -> jax.ShapeDtypeStruct:
    aval = atom.aval
    assert isinstance(aval, ShapedArray)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _reads(pieces: Sequence[Sequence[JaxprEqn]]) -> list[list[Var]]:
    """What each piece reads and does not make."""
    read = []
    for eqns in pieces:
        made = {var for eqn in eqns for var in eqn.outvars}
        atoms = dict.fromkeys(atom for eqn in eqns for atom in eqn.invars if not isinstance(atom, Literal))
        read.append([var for var in atoms if var not in made])
    return read


def _function(
    closed: ClosedJaxpr, eqns: Sequence[JaxprEqn], reads: Sequence[_Atom], gives: Sequence[_Atom]
) -> Callable[..., Sequence[jax.Array]]:
    jaxpr = closed.jaxpr.replace(invars=reads, outvars=gives, eqns=eqns)
    run: Callable[..., Sequence[jax.Array]] = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
    return run
