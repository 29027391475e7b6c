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

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxnet.comm import UPDATE, PieceProgram, cut, lower_here, one_per_device, replicated, result_turns
from jaxnet.parallel.device_step import LOSS_SCALE, NOT_FINITE, SKIPPED, Metrics
from jaxnet.parallel.state import TrainState
from jaxnet.tasks.task import PyTree

# ---- Which message travels when -----------------------------------------------------------------------


def travel_order(ready: Sequence[float], seconds: Sequence[float], need: Sequence[int]) -> list[int]:
    """The order in which messages travel over one link, each as soon as the link is free.

    Of the messages that are ready the one that is needed first; of none, the one that is ready first.

    Args:
        ready: when each has been computed, in seconds.
        seconds: that each takes.
        need: its turn: 0 is needed first.

    Four layers, the last one's gradient first; the link is the slower part:

    >>> travel_order(ready=[1, 2, 3, 4], seconds=[2, 2, 2, 2], need=[3, 2, 1, 0])
    [0, 2, 3, 1]
    """
    left, order, now = set(range(len(ready))), list[int](), 0.0
    while left:
        now = max(now, min(ready[place] for place in left))
        place = min((place for place in left if ready[place] <= now), key=lambda place: (need[place], place))
        left.remove(place)
        order.append(place)
        now += seconds[place]
    return order


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
    of_leaves = [max(rank[m] for m, leaves in enumerate(held) if leaf in leaves) for leaf in range(len(reads))]
    return of_messages, of_leaves


# ---- The guard: known before any sum has travelled, so that no update has to wait for all sums --------


def could_overflow(grads: PyTree, devices: int, limit: float) -> list[jax.Array]:
    """For each leaf of one device's gradient, whether it is not finite or sums of it could exceed `limit`: bool [].

    They cannot where `devices * |g| <= limit` on every device. In float32 the sum of all absolute values is asked
    instead of the largest one, which takes a fifth of the time and differs only near 1e38.
    """
    wide = limit >= float(jnp.finfo(jnp.float32).max)
    size = lambda leaf: jnp.abs(leaf).sum(dtype=jnp.float32) if wide else jnp.abs(leaf).max()  # noqa: E731
    return [~(devices * size(leaf).astype(jnp.float32) <= limit) for leaf in jax.tree.leaves(grads)]


def unless_bad(
    old: TrainState, new: TrainState, metrics: Mapping[str, jax.Array], bad_leaves: jax.Array
) -> tuple[TrainState, Metrics]:
    """As `Skip`, an element at a time: a leaf depends on its own sum and on the flags alone, float32 [leaves]."""
    bad = jnp.concatenate([~jnp.isfinite(sum(metrics.values()))[None], bad_leaves > 0])
    good = ~bad.any()
    chosen = jax.tree.map(lambda n, o: n if n is o else jnp.where(good, n, o), new, old)._replace(step=new.step)
    given = {**metrics, SKIPPED: 1.0 - good.astype(jnp.float32), NOT_FINITE: bad}
    if old.scale is not None:
        chosen, given[LOSS_SCALE] = chosen._replace(scale=old.scale.next(good)), old.scale.scale
    return chosen, given


# ---- The update, a program for all results that depend on messages up to the same one ----------------


class Update(NamedTuple):
    """A part of the update, its program (lowered or compiled), and the messages whose sums it reads."""

    piece: PieceProgram
    program: Any
    sums: tuple[int, ...]


class Updates:
    """`updates(state, sums, order) -> (state, metrics)`: launches each part as soon as its sums have been launched.

    From a thread of its own: a program waits for the one that its thread launched before, and the next forward pass
    must not wait for all updates.
    """

    def __init__(self, parts: Sequence[Update], results: Sequence[int], tree: jax.tree_util.PyTreeDef) -> None:
        self.parts = parts
        self._results = results
        self._tree = tree
        self._thread = ThreadPoolExecutor(1, "updates")

    def __call__(
        self, state: TrainState, sums: "Sequence[Future[tuple[jax.Array, PyTree]]]", order: Sequence[int]
    ) -> tuple[TrainState, Metrics]:
        values = self._thread.submit(self._launch, jax.tree.leaves(state), sums, order).result()
        given: tuple[TrainState, Metrics] = jax.tree.unflatten(self._tree, [values[n] for n in self._results])
        return given

    def _launch(
        self, leaves: list[jax.Array], sums: "Sequence[Future[tuple[jax.Array, PyTree]]]", order: Sequence[int]
    ) -> dict[int, Any]:
        values: dict[int, Any] = dict(enumerate(leaves))
        arrival = {place: turn for turn, place in enumerate(order)}
        waiting = sorted(self.parts, key=lambda part: max((arrival[place] for place in part.sums), default=-1))
        while waiting:
            # Its values are those of sums, which are waited for, and of other parts, which have to come first.
            part = next(p for p in waiting if all(n in values or n - len(leaves) in p.sums for n in p.piece.reads))
            waiting.remove(part)
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
    parts = []
    for piece in pieces.programs:
        gone = {n for n in range(owned) if number[n] in piece.gives and readers.count(n) == 1}
        donate = tuple(place for place, each in enumerate(piece.reads) if each in gone)
        program = lower_here(UPDATE, piece.run, [pieces.shapes[n] for n in piece.reads], mesh, donate)
        sums = tuple(n - owned for n in piece.reads if owned <= n < owned + len(specs))
        parts.append(Update(piece, program, sums))
    return Updates(parts, [number[place] for place in range(len(results))], tree)
