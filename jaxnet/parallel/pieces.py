"""The pieces form: the replicated step as several programs, so that messages travel while others are computed.

1. A program for each bucket computes what the bucket's gradients need, and ends when they are there.
2. From a second thread, a program for each bucket sums it over the mesh, while the next piece computes.
3. The last program takes all sums and updates the state.

Under the schedule 'priority' forward and the update are cut as well, and messages cross the end of the step: see
`jaxnet.parallel.priority`. It is the form for CPU hosts, where one program overlaps little (docs/design/pieces.md).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    AXES,
    Launch,
    LoweredLaunch,
    Message,
    Messages,
    Reducer,
    Strategy,
    all_reduce,
    first_reads,
    local_shards,
    lower_launch,
    mesh_size,
    messages_of,
    platform_of,
    replicated_arrays,
)
from jaxnet.models import network_options
from jaxnet.parallel.device_step import (
    SKIPPED,
    Metrics,
    example_keys,
    guard_plan,
    loss_gradient,
    mean_of,
    non_finite_in,
    one_message,
    unless_any,
    update_by_sum,
)
from jaxnet.parallel.form import StepOptions, StepPlan, Traffic
from jaxnet.parallel.layout import Layout
from jaxnet.parallel.priority import (
    Timed,
    Updates,
    best_order,
    could_overflow,
    lower_updates,
    of_the_slowest,
    turns_of,
    unless_bad,
)
from jaxnet.parallel.replicated import Replicated
from jaxnet.parallel.state import TrainState, before_sum, divisor, scaled
from jaxnet.tasks.task import Batch, LossFn, LossOutput, PyTree


class Turns(NamedTuple):
    """When the next forward pass needs what.

    Attributes:
        need: of each message, from 0. What is small and wanted at once comes first: metrics and flags.
        arguments: of each argument of the gradient, flat: 0 if it is there from the start.
        first: how many messages come before those of gradients.
    """

    need: list[int]
    arguments: list[int]
    first: int

    def messages_before(self, turn: int) -> tuple[int, ...]:
        """Those that what waits for arguments of this turn has to wait for."""
        return tuple(place for place, at in enumerate(self.need) if turn > 0 and at < self.first + turn)


_MOST_SHARE = 0.8  # of the processor; in the model, a process whose messages take all of it would never compute


class CompiledPieces:
    """`step(state, batch) -> (state, metrics)`, as a compiled step of one program is called.

    With `turns` the first call measures pieces and messages, and orders them.
    """

    def __init__(self, launch: Launch, updates: Updates, mesh: Mesh, turns: Turns | None) -> None:
        self._launch = launch
        self._updates = updates
        self._mesh = mesh
        self._turns = turns

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        own, share = local_shards(state._replace(comm=())), local_shards(batch)
        others: list[PyTree] = [()] * (len(self._launch.order) - len(state.comm))  # these have no state
        if self._turns is not None:
            self._launch = self._ordered(self._turns, (own, share), [*others, *state.comm])
            self._updates = self._updates.in_order(self._launch.order)
            self._turns = None
        sums = self._launch.begin((own, share), [*others, *state.comm])
        # All pieces have been launched or, of what is lent, computed: nothing that an update donates is read again.
        new, metrics = replicated_arrays(self._updates(own, sums), self._mesh)
        comm = tuple(future.result()[1] for future in sums[len(others) :])
        if SKIPPED in metrics and jax.tree.leaves(comm):
            comm = _unless(metrics[SKIPPED], comm, state.comm)
        return new._replace(comm=comm), metrics

    def _ordered(self, turns: Turns, arguments: PyTree, states: Sequence[PyTree]) -> Launch:
        """The launch, in the order that suits the times of the slowest process: the same in all."""
        of_pieces, of_sums, share = self._launch.timed(arguments, states)
        *times, share = of_the_slowest(self._mesh, [*of_pieces, *of_sums, min(share, _MOST_SHARE)])
        programs = [each.piece for each in self._launch.pieces]
        maker = {number: place for place, program in enumerate(programs) for number in program.gives}
        timed = [
            Timed(
                seconds=seconds,
                waits=turns.messages_before(each.piece.turn),
                sends=tuple(place for place, _ in each.sends),
                after=tuple({maker[number] for number in each.piece.reads if number in maker}),
            )
            for seconds, each in zip(times, self._launch.pieces, strict=False)
        ]
        return self._launch.in_order(*best_order(timed, times[len(timed) :], share))

    def as_text(self) -> str:
        """All programs: what computes and what sums in the order in which they are launched, then the updates."""
        return "\n".join((self._launch.as_text(), self._updates.as_text()))


@functools.partial(jax.jit, donate_argnums=1)
def _unless(skipped: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """The reducers' new states, or those from before a step that was skipped: a program of its own."""
    return jax.tree.map(lambda n, o: jnp.where(skipped > 0, o, n), new, old)


class LoweredPieces(NamedTuple):
    """The programs before compilation."""

    launch: LoweredLaunch
    updates: Updates
    turns: Turns | None

    def compile(self) -> CompiledPieces:
        """Compile each program once."""
        mesh = self.launch.mesh
        launch = self.launch.compile(network_options(platform_of(mesh)))
        return CompiledPieces(launch, self.updates.compile(), mesh, self.turns)

    def as_text(self) -> str:
        """All programs: what computes and what sums in the order in which they are launched, then the updates."""
        return "\n".join((self.launch.as_text(), self.updates.as_text()))


class _Sent(NamedTuple):
    """What a step sends, in this order: metrics and running averages, flags of what is not finite, gradients.

    Attributes:
        others: metrics and running averages: one message, there when forward ends.
        flags: of each leaf of the gradient, float32 [leaves]; there when backward ends. None: nothing is flagged.
        gradients: a message a bucket.
    """

    others: Messages
    flags: jax.ShapeDtypeStruct | None
    gradients: Messages

    @property
    def first(self) -> int:
        """The place of the first message of gradients."""
        return len(self.others.specs) + (self.flags is not None)

    @property
    def all(self) -> list[Message]:
        """All messages."""
        flags = [] if self.flags is None else [Message(all_reduce(*AXES), self.flags, "guard")]
        return [
            *(Message(*each, "metrics") for each in zip(self.others.reducers, self.others.specs, strict=True)),
            *flags,
            *map(Message, self.gradients.reducers, self.gradients.specs),
        ]

    @property
    def leaves(self) -> list[list[int]]:
        """Of each message of gradients, the leaves of which it holds something."""
        order = self.gradients.order
        return [[order[piece.leaf] for piece in bucket.pieces] for bucket in self.gradients.buckets.buckets]


class PiecesStep:
    """`step(state, batch)`, compiled at its first call; `lower` gives the programs of a state and a batch."""

    def __init__(
        self,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation,
        strategy: Strategy,
        mesh: Mesh,
        options: StepOptions,
    ) -> None:
        assert isinstance(strategy.reducer, Reducer)
        self._reducer = strategy.reducer
        self._schedule = strategy.schedule
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._mesh = mesh
        self._options = options
        self._compiled: CompiledPieces | None = None

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        if self._compiled is None:
            self._compiled = self.lower(state, batch).compile()
        return self._compiled(state, batch)

    def lower(self, state: TrainState, batch: PyTree) -> LoweredPieces:
        """The programs for a state and a batch of these shapes; arrays will do."""
        # 1. What one device is given, and what it sends.
        devices, crosses = mesh_size(self._mesh), self._schedule == "priority"
        share = lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] // devices, *leaf.shape[1:]), leaf.dtype)  # noqa: E731
        shapes = (jax.eval_shape(lambda: state._replace(comm=())), jax.tree.map(share, batch))
        remembered = jax.tree.leaves(state.comm)
        grads, result = jax.eval_shape(self._gradients, *shapes)
        flagged = crosses and self._options.skip
        sent = _Sent(
            others=messages_of(one_message(), result, self._mesh.shape),
            flags=jax.ShapeDtypeStruct((len(jax.tree.leaves(grads)),), "float32") if flagged else None,
            gradients=messages_of(self._reducer, state.params, self._mesh.shape, self._options.order),
        )
        limit = _largest_on_the_wire(sent.gradients, self._mesh) if flagged else 0.0

        # 2. Forward and backward: a piece for each message.
        def messages(state: TrainState, batch: Batch) -> list[jax.Array]:
            grads, result = self._gradients(state, batch)
            grads = before_sum(grads, state.scale, remembered)
            bad = could_overflow(grads, devices, limit) if flagged else []
            flags = [jnp.stack(bad).astype(jnp.float32)] if flagged else []
            return [*sent.others.pack(result), *flags, *sent.gradients.pack(grads), *bad]

        turns = self._turns(shapes, sent) if crosses else None
        launch = lower_launch(
            *(messages, shapes, sent.all, self._mesh),
            groups=_groups(sent, at_once=self._schedule == "after"),
            turns=turns and turns.arguments,
            apart=crosses,
            keep=self._options.skip and bool(remembered),
        )

        # 3. The update: one program or, across the end of the step, one for what depends on the same messages.
        def update(state: TrainState, sums: Sequence[jax.Array]) -> tuple[TrainState, Metrics]:
            by, first = divisor(devices, state.scale, remembered), sent.first
            result = sent.others.unpack([mean_of(total, devices) for total in sums[: len(sent.others.specs)]])
            totals, unpack, decay = sums[first:], sent.gradients.unpack, self._options.average_decay
            new, metrics = update_by_sum(state, totals, by, result, self._optimizer, decay, unpack)
            if flagged:
                return unless_bad(state, new(), metrics, sums[first - 1])
            if self._options.skip:
                return unless_any(non_finite_in(metrics, totals, unpack), new, state, (), metrics)
            return new(), metrics

        specs = [message.spec for message in sent.all]
        return LoweredPieces(launch, lower_updates(update, shapes[0], specs, self._mesh, turns and turns.need), turns)

    def _gradients(self, state: TrainState, batch: Batch) -> tuple[PyTree, LossOutput]:
        keys = example_keys(state.key, state.step, batch["id"])
        loss = scaled(self._loss_fn, state.scale)
        return loss_gradient(loss, state.params, state.stats, batch, keys, self._options.microbatches)

    def _turns(self, shapes: tuple[TrainState, PyTree], sent: _Sent) -> Turns:
        of_state = shapes[0]._asdict().items()
        is_param = [name == "params" for name, part in of_state for _ in jax.tree.leaves(part)]
        reads = first_reads(self._gradients, shapes)
        messages, leaves = turns_of([reads[n] for n, yes in enumerate(is_param) if yes], sent.leaves)
        of_params = iter(leaves)
        return Turns(
            need=[*range(sent.first), *(sent.first + turn for turn in messages)],
            arguments=[
                *(1 + next(of_params) if yes else 0 for yes in is_param),
                *(0 for _ in jax.tree.leaves(shapes[1])),
            ],
            first=sent.first,
        )


def _groups(sent: _Sent, at_once: bool) -> list[list[int]]:
    """Which messages a piece computes, and with gradients the flag of each leaf, numbered behind all messages."""
    count = len(sent.all)
    if at_once:
        return [list(range(count))]
    groups = [[place] for place in range(len(sent.others.specs))]
    if sent.flags is None:
        return groups + [[place] for place in range(sent.first, count)]
    seen: set[int] = set()
    for place, leaves in enumerate(sent.leaves, sent.first):
        groups.append([place, *(count + leaf for leaf in dict.fromkeys(leaves) if leaf not in seen)])
        seen.update(leaves)
    empty = [count + leaf for leaf in range(*sent.flags.shape) if leaf not in seen]  # and so in no message
    return [*groups, [sent.first - 1, *empty]]


def _largest_on_the_wire(gradients: Messages, mesh: Mesh) -> float:
    """The largest number that every message of gradients can hold, in whatever floating-point types it travels."""
    types = {jnp.dtype(each.dtype) for sent in gradients.collectives(mesh.shape) for each in sent}
    return min(
        float(jnp.finfo(each).max) for each in {*types, jnp.dtype("float32")} if jnp.issubdtype(each, jnp.floating)
    )


def sums_by_message(strategy: Strategy) -> bool:
    """Whether a strategy sums gradients message by message, as the step in pieces needs."""
    return (
        strategy.kind == "replicated" and isinstance(strategy.reducer, Reducer) and strategy.reducer.message is not None
    )


def crosses_steps(strategy: Strategy, mesh: Mesh) -> bool:
    """Whether messages are to cross the end of a step and, between CPU hosts of a device each, can: in pieces alone."""
    return strategy.schedule == "priority" and sums_by_message(strategy) and computes_apart(mesh)


def computes_apart(mesh: Mesh) -> bool:
    """Whether processes, of a CPU device each, can compute in programs of their own beside those that sum."""
    return platform_of(mesh) == "cpu" and len(mesh.local_devices) == 1 < mesh_size(mesh)


@dataclass(frozen=True)
class StepInPieces(Replicated):
    """See `Form`: the replicated form, but for the step.

    Raises:
        ValueError: the strategy does not sum gradients message by message.
    """

    def __post_init__(self) -> None:
        if not sums_by_message(self.strategy):
            raise ValueError(
                f"strategy {self.strategy.label!r} does not sum gradients message by message, as mode 'pieces' does"
            )

    def step(self, loss_fn: LossFn, optimizer: optax.GradientTransformation, layout: Layout) -> PiecesStep:
        """Several programs, used as a `jax.jit` function is."""
        del layout
        return PiecesStep(loss_fn, optimizer, self.strategy, self.mesh, self.options)

    def plan(self, layout: Layout, traffic: Traffic) -> StepPlan:
        """As in one program, and where messages cross the end of a step, flags of what is not finite."""
        plan = super().plan(layout, traffic)
        if not (self.options.skip and self.strategy.schedule == "priority"):
            return plan
        flags = guard_plan(layout.whole_shapes.params, AXES, self.mesh.shape)
        return plan._replace(collectives=plan.collectives + flags, shares=plan.shares + (1.0,) * len(flags))
