"""Messages that cross the end of a step: what the next forward pass needs first travels and is updated first.

A step that ends with its own sums leaves the link idle while forward computes, and the processor while the last sums
travel. Here both go on (P3, Jayarajan et al., MLSys 2019; ByteScheduler, Peng et al., SOSP 2019):

    link       ... step n: layer 3    layer 0    layer 1    layer 2
    update                                layer 3, 0  layer 1    layer 2
    processor  step n: backward ----------]          0 |        1 |       2, 3, step n+1: backward ---]

Nothing is computed from older parameters and the sums are those of the other schedules, so the bits are. What a step
gives are arrays that may still be under way; whoever reads one, the next forward pass or a checkpoint, waits for it.

1. Forward is cut where it first needs the parameters of another message, backward where a message is complete.
2. The update is cut by the messages that its results depend on. A norm over all gradients depends on all.
3. Messages travel in an order that all processes share. It is made from times that were measured in one step.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxnet.comm import UPDATE, PieceProgram, cut, lower_here, one_per_device, own_device, replicated, result_turns
from jaxnet.parallel.device_step import Metrics, with_verdict
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.task import PyTree

# ---- In which order pieces are computed and messages travel -------------------------------------------


class Timed(NamedTuple):
    """A piece, measured: its seconds, the messages of the step before that it waits for, and those that it computes.

    `after` are the places of the pieces that have to come before it.
    """

    seconds: float
    waits: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class Order(NamedTuple):
    """Places of pieces as they are computed, and of messages as they travel."""

    pieces: tuple[int, ...]
    messages: tuple[int, ...]


_SIMULATED_STEPS = 3  # from the second on all are alike
_STARTS, _TRIES = 8, 625  # half a second for ten messages. Of starts from the same order some end 3 % worse than others
_HEAT = 0.003  # a step that is longer by this fraction is taken at first by one in e


class SteadyStep(NamedTuple):
    """One of many equal steps, in a model; seconds from the end of the step before.

    Attributes:
        seconds: of the step; infinite if pieces and messages wait for each other for ever.
        computed: from when to when each piece was computed, as they follow each other.
        travelled: messages, and from when to when each was on the link in this step, the rest of the step before too.
    """

    seconds: float
    computed: tuple[tuple[float, float], ...] = ()
    travelled: tuple[tuple[int, tuple[float, float]], ...] = ()


def steady_step(order: Order, pieces: Sequence[Timed], seconds: Sequence[float], share: float = 0.0) -> SteadyStep:
    """A step among equal ones, whose messages cross its end, in a model.

    A processor takes the pieces and a link the messages, each in its order, again and again. A piece waits for messages
    of the step before, a message for its piece. While both work the processor is slower, by what the link takes of it.

    Args:
        order: of both.
        pieces: measured.
        seconds: of each message.
        share: of the processor's time that a message on its way takes.
    """
    # 1. Of what pieces wait for, leave only what no piece before them in the step has waited for.
    waited: set[int] = set()
    chain = []
    for place in order.pieces:
        piece = pieces[place]
        chain.append((piece.seconds, [message for message in piece.waits if message not in waited], piece.sends))
        waited.update(piece.waits)
    # 2. From event to event: the end of a piece or of a message, counted by step.
    made, arrived = [0] * len(seconds), [0] * len(seconds)
    now, begun, done, sent = 0.0, 0.0, 0, 0
    work, way = chain[0][0], seconds[order.messages[0]]
    began, left = -1.0, -1.0  # the piece, and the message; -1: not yet
    computed: list[tuple[float, float]] = []  # of the last step, and so below
    travelled: list[tuple[int, tuple[float, float]]] = []
    last = (_SIMULATED_STEPS - 1) * len(chain)
    while done < _SIMULATED_STEPS * len(chain):
        step, place = divmod(done, len(chain))
        message = order.messages[sent % len(seconds)]
        computes = all(arrived[each] >= step for each in chain[place][1])
        travels = made[message] > sent // len(seconds)
        if not (computes or travels):
            return SteadyStep(math.inf)
        began = now if computes and began < 0 else began
        left = now if travels and left < 0 else left
        rate = 1.0 - share if travels else 1.0
        span = min(work / rate if computes else float("inf"), way if travels else float("inf"))
        now += span
        work -= span * rate if computes else 0.0
        way -= span if travels else 0.0
        if travels and way <= 1e-9:
            arrived[message] += 1
            if done >= last:
                travelled.append((message, (max(left, begun) - begun, now - begun)))
            sent, left = sent + 1, -1.0
            way = seconds[order.messages[sent % len(seconds)]]
        if computes and work <= 1e-9:
            for each in chain[place][2]:
                made[each] += 1
            if done >= last:
                computed.append((began - begun, now - begun))
            done, began = done + 1, -1.0
            begun = now if done == last else begun
            work = chain[done % len(chain)][0]
    # 3. Of a message that is under way at the end of the last step, the part so far.
    if left >= 0:
        travelled.append((order.messages[sent % len(seconds)], (max(left, begun) - begun, now - begun)))
    return SteadyStep(now - begun, tuple(computed), tuple(travelled))


def best_order(pieces: Sequence[Timed], seconds: Sequence[float], share: float = 0.0) -> Order:
    """The order in which, by the model, the next step begins earliest; the same in all processes that ask alike.

    Simulated annealing, the best of eight runs: each begins with pieces as they are and messages by priority, and moves
    one message or one piece that computes some at a time, at first also where that does harm. What comes of it, where
    the processor is the slower part: the gradients of some weights are computed behind those that forward begins with,
    while these travel (out-of-order backprop, Oh et al., EuroSys 2022). Where the link is: what is needed last is sent
    last, though it is ready first, because the link rests from the last arrival until the next message is ready.

    Two layers: forward of each, then the gradients of the second one's weights and of the first one's.

    >>> pieces = [Timed(2, (1,)), Timed(1, (0, 1), after=(0,)), Timed(2, (), (0,), (1,)), Timed(2, (), (1,), (1,))]
    >>> best_order(pieces, seconds=[1, 2])
    Order(pieces=(0, 1, 3, 2), messages=(1, 0))
    >>> [steady_step(Order(each, (1, 0)), pieces, [1, 2]).seconds for each in [(0, 1, 2, 3), (0, 1, 3, 2)]]
    [9.0, 7.0]
    """
    first = Order(tuple(range(len(pieces))), by_priority(pieces, seconds))
    found = [_annealed(first, pieces, seconds, share, random.Random(start)) for start in range(_STARTS)]
    return min(found, key=lambda order: steady_step(order, pieces, seconds, share).seconds)


def _annealed(
    order: Order, pieces: Sequence[Timed], seconds: Sequence[float], share: float, draw: random.Random
) -> Order:
    best, movable = order, [place for place, piece in enumerate(pieces) if piece.sends]
    period = shortest = steady_step(order, pieces, seconds, share).seconds
    for left in range(_TRIES, 0, -1):
        if draw.random() < 0.5:
            old, new = draw.randrange(len(seconds)), draw.randrange(len(seconds))
            tried = order._replace(messages=_moved(order.messages, old, new))
        else:
            old, new = order.pieces.index(draw.choice(movable)), draw.randrange(len(pieces))
            tried = order._replace(pieces=_moved(order.pieces, old, new))
            if not _keeps_dependences(tried.pieces, pieces):
                continue
        longer = steady_step(tried, pieces, seconds, share).seconds - period
        if longer <= 0 or draw.random() < math.exp(-longer / (_HEAT * shortest * left / _TRIES)):
            order, period = tried, period + longer
            if period < 0.999 * shortest:
                best, shortest = order, period
    return best


def by_priority(pieces: Sequence[Timed], seconds: Sequence[float]) -> tuple[int, ...]:
    """The order of messages in which, when the link is free, that one of those ready travels which is needed first.

    Three layers, whose gradients are ready after 1, 2 and 3 seconds, the last one's first:

    >>> forward = [Timed(0, waits=(2,)), Timed(0, waits=(1, 2)), Timed(0, waits=(0, 1, 2))]
    >>> by_priority([*forward, Timed(1, sends=(0,)), Timed(1, sends=(1,)), Timed(1, sends=(2,))], seconds=[2, 2, 2])
    (0, 2, 1)
    """
    need, ready, now = dict[int, int](), dict[int, float](), 0.0
    for place, piece in enumerate(pieces):
        now += piece.seconds
        need.update((message, place) for message in piece.waits if message not in need)
        ready.update((message, now) for message in piece.sends)
    order, free = list[int](), 0.0
    while ready:
        free = max(free, min(ready.values()))
        message = min((each for each, at in ready.items() if at <= free), key=lambda each: (need.get(each, -1), each))
        del ready[message]
        order.append(message)
        free += seconds[message]
    return tuple(order)


def _moved(places: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    rest = places[:old] + places[old + 1 :]
    return (*rest[:new], places[old], *rest[new:])


def _keeps_dependences(order: tuple[int, ...], pieces: Sequence[Timed]) -> bool:
    at = {piece: place for place, piece in enumerate(order)}
    return all(at[before] < at[piece] for piece in order for before in pieces[piece].after)


def of_the_slowest(mesh: Mesh, times: Sequence[float]) -> list[float]:
    """The largest of each of these times over all processes, which have a device each: the same list on all."""
    own = np.array([[times]], np.float32)
    spread = jax.make_array_from_process_local_data(one_per_device(mesh), own)
    slowest = jax.jit(lambda each: each.max((0, 1)), out_shardings=replicated(mesh))(spread)
    return [float(seconds) for seconds in np.asarray(slowest.addressable_data(0))]


def turns_of(reads: Sequence[int], held: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """In which turn forward needs each message, and each leaf, which is whole with the last of its messages.

    Args:
        reads: of each leaf, the place of the operation of forward that reads it first.
        held: of each message, the leaves in it.

    Three layers, of which the first two share the second message:

    >>> turns_of(reads=[0, 3, 7], held=[[2], [0, 1]])
    ([1, 0], [0, 0, 1])
    """
    first = [min(reads[leaf] for leaf in leaves) for leaves in held]
    rank = {message: turn for turn, message in enumerate(sorted(range(len(held)), key=first.__getitem__))}
    of_messages = [rank[message] for message in range(len(held))]
    # A leaf without elements is in no message.
    turns = [[rank[m] for m, leaves in enumerate(held) if leaf in leaves] for leaf in range(len(reads))]
    of_leaves = [max(own, default=0) for own in turns]
    return of_messages, of_leaves


# ---- The guard: known before any sum has travelled, so that no update has to wait for all sums --------


def could_overflow(grads: PyTree, devices: int, limit: float) -> list[jax.Array]:
    """For each leaf of one device's gradient, whether it is not finite or sums of it could exceed `limit`: bool [].

    They cannot where `devices * |g| <= limit` on every device. In float32 the sum of all absolute values is asked
    instead of the largest one: that costs least on CPUs, and differs only near 1e38.
    """
    wide = limit >= float(jnp.finfo(jnp.float32).max)
    size = lambda leaf: jnp.abs(leaf).sum(dtype=jnp.float32) if wide else jnp.abs(leaf).max(initial=0)  # noqa: E731
    return [~(devices * size(leaf).astype(jnp.float32) <= limit) for leaf in jax.tree.leaves(grads)]


def unless_bad(
    old: TrainState, new: TrainState, metrics: Mapping[str, jax.Array], bad_leaves: jax.Array
) -> tuple[TrainState, Metrics]:
    """As `Skip`, an element at a time: a leaf depends on its own sum and on the flags alone, float32 [leaves]."""
    bad = jnp.concatenate([~jnp.isfinite(metrics["loss"])[None], bad_leaves > 0])
    good = ~bad.any()
    chosen = jax.tree.map(lambda n, o: n if n is o else jnp.where(good, n, o), new, old)._replace(step=new.step)
    return with_verdict(chosen, metrics, bad, old.scale)


# ---- The update, a program for all results that depend on messages up to the same one ----------------


class Update(NamedTuple):
    """A part of the update, its program (lowered or compiled), and the messages whose sums it reads."""

    piece: PieceProgram
    program: Any
    sums: tuple[int, ...]


class Updates:
    """`updates(state, sums) -> (state, metrics)`: launches each part as soon as its sums have been launched.

    From a thread of its own: a program waits for the one that its thread launched before, and the next forward pass
    must not wait for all updates.
    """

    def __init__(self, parts: Sequence[Update], results: Sequence[int], tree: jax.tree_util.PyTreeDef) -> None:
        self.parts = parts
        self._results = results
        self._tree = tree
        self._thread = ThreadPoolExecutor(1, "updates")

    def in_order(self, messages: Sequence[int]) -> "Updates":
        """The same programs, launched in the order in which these messages let them begin."""
        arrival = {place: turn for turn, place in enumerate(messages)}
        maker = {number: part for part in self.parts for number in part.piece.gives}
        waiting = sorted(self.parts, key=lambda part: max((arrival[place] for place in part.sums), default=-1))
        ordered: list[Update] = []
        while waiting:
            # What it reads of other parts has to be there.
            part = next(p for p in waiting if not any(maker.get(n) in waiting for n in p.piece.reads))
            waiting.remove(part)
            ordered.append(part)
        return Updates(ordered, self._results, self._tree)

    def __call__(
        self, state: TrainState, sums: "Sequence[Future[tuple[jax.Array, PyTree]]]"
    ) -> tuple[TrainState, Metrics]:
        values = self._thread.submit(self._launch, jax.tree.leaves(state), sums).result()
        given: tuple[TrainState, Metrics] = jax.tree.unflatten(self._tree, [values[n] for n in self._results])
        return given

    def _launch(self, leaves: list[jax.Array], sums: "Sequence[Future[tuple[jax.Array, PyTree]]]") -> dict[int, Any]:
        values: dict[int, Any] = dict(enumerate(leaves))
        for part in self.parts:
            values.update({len(leaves) + place: sums[place].result()[0] for place in part.sums})
            values.update(zip(part.piece.gives, part.program(*(values[n] for n in part.piece.reads)), strict=True))
        return values

    def compile(self) -> "Updates":
        """Compile each program once."""
        parts = [part._replace(program=part.program.compile()) for part in self.parts]
        return Updates(parts, self._results, self._tree)

    def as_text(self) -> str:
        """All programs."""
        return "\n".join(part.program.as_text() or "" for part in self.parts)


def lower_updates(
    update: Callable[[TrainState, Sequence[jax.Array]], tuple[TrainState, Metrics]],
    state: TrainState,
    specs: Sequence[jax.ShapeDtypeStruct],
    mesh: Mesh,
    need: Sequence[int] | None,
) -> Updates:
    """The programs of an update, lowered.

    Args:
        update: gives the new state and metrics.
        state: its shapes.
        specs: of the sums.
        mesh: of which this process has one device.
        need: the turn of each message, from 0; None: one program, when all sums are there.
    """
    # 1. Which results belong together.
    flat = lambda *args: jax.tree.leaves(update(*args))  # noqa: E731
    shapes = (state, list(specs))
    results, tree = jax.tree.flatten(jax.eval_shape(update, *shapes))
    owned = len(jax.tree.leaves(state))
    turns = [0] * len(results)
    if need is not None:
        turns = result_turns(flat, shapes, [*([0] * owned), *(1 + turn for turn in need)])
    groups = [[place for place in range(len(results)) if turns[place] == turn] for turn in sorted(set(turns))]
    # 2. A program for each. What becomes the new value of the same leaf, and is read by no other, is donated.
    pieces = cut(flat, shapes, groups)
    number: dict[int, int] = {}
    for group, piece in zip(groups, pieces.programs, strict=True):
        number.update(zip(group, piece.results, strict=True))
    readers = [each for piece in pieces.programs for each in piece.reads]
    # An optimizer may keep what it was given, such as the parameters of the step before.
    kept, parts = set(number.values()), []
    for piece in pieces.programs:
        gone = {n for n in range(owned) if number[n] in piece.gives and readers.count(n) == 1 and n not in kept}
        donate = tuple(place for place, each in enumerate(piece.reads) if each in gone)
        program = lower_here(UPDATE, piece.run, [pieces.shapes[n] for n in piece.reads], own_device(mesh), donate)
        sums = tuple(n - owned for n in piece.reads if owned <= n < owned + len(specs))
        parts.append(Update(piece, program, sums))
    return Updates(parts, [number[place] for place in range(len(results))], tree)
