"""The pieces form: the replicated step as several programs, so that messages travel while others are computed.

1. A program for each bucket computes what the bucket's gradients need, and ends when they are there.
2. From a second thread, a program for each bucket sums it over the mesh, while the next piece computes.
3. The last program takes all sums and updates the state.

It is the fastest form between CPU hosts, where one program cannot overlap its own collectives (docs/design/pieces.md).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    UPDATE,
    Launch,
    LoweredLaunch,
    Message,
    Messages,
    Reducer,
    Strategy,
    local_shards,
    lower_here,
    lower_launch,
    mesh_size,
    messages_of,
    platform_of,
    replicated_arrays,
)
from jaxnet.models import network_options
from jaxnet.optimizer import ShardedParams
from jaxnet.parallel.device_step import (
    SKIPPED,
    Metrics,
    Skip,
    example_keys,
    loss_gradient,
    one_message,
    per_weight,
    update_state,
)
from jaxnet.parallel.form import StepOptions, StepPlan, Traffic
from jaxnet.parallel.layout import Layout
from jaxnet.parallel.replicated import Replicated
from jaxnet.parallel.state import TrainState, before_sum, divisor, scaled
from jaxnet.tasks.task import Batch, LossFn, LossOutput, PyTree


class CompiledPieces:
    """`step(state, batch) -> (state, metrics)`, as a compiled step of one program is called."""

    def __init__(self, launch: Launch, update: jax.stages.Compiled, mesh: Mesh, others: int) -> None:
        self._launch = launch
        self._update = update
        self._mesh = mesh
        self._others: list[PyTree] = [()] * others  # messages that are not gradients have no state

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        own = local_shards(state._replace(comm=()))
        sums, states = self._launch((own, local_shards(batch)), [*self._others, *state.comm])
        new, metrics = replicated_arrays(self._update(own, sums), self._mesh)
        comm = tuple(states[len(self._others) :])
        if SKIPPED in metrics and jax.tree.leaves(comm):
            comm = _unless(metrics[SKIPPED], comm, state.comm)
        return new._replace(comm=comm), metrics

    def as_text(self) -> str:
        """All programs, in the order in which they are launched."""
        return "\n".join((self._launch.as_text(), self._update.as_text() or ""))


@functools.partial(jax.jit, donate_argnums=1)
def _unless(skipped: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """The reducers' new states, or those from before a step that was skipped: a program of its own."""
    return jax.tree.map(lambda n, o: jnp.where(skipped > 0, o, n), new, old)


class LoweredPieces(NamedTuple):
    """The programs before compilation."""

    launch: LoweredLaunch
    update: jax.stages.Lowered
    others: int

    def compile(self) -> CompiledPieces:
        """Compile each program once."""
        launch = self.launch.compile(network_options(platform_of(self.launch.mesh)))
        return CompiledPieces(launch, self.update.compile(), self.launch.mesh, self.others)

    def as_text(self) -> str:
        """All programs, in the order in which they are launched."""
        return "\n".join((self.launch.as_text(), self.update.as_text()))


class PiecesStep:
    """`step(state, batch)`, compiled at its first call; `lower` gives the programs of a state and a batch.

    Metrics and running averages are one message more, the first: they are there when forward ends.
    """

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
        self._at_once = strategy.schedule == "after"
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._mesh = mesh
        self._order = options.order
        self._microbatches = options.microbatches
        self._average_decay = options.average_decay
        self._skip = Skip() if options.skip else None
        self._compiled: CompiledPieces | None = None

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        if self._compiled is None:
            self._compiled = self.lower(state, batch).compile()
        return self._compiled(state, batch)

    def lower(self, state: TrainState, batch: PyTree) -> LoweredPieces:
        """The programs for a state and a batch of these shapes; arrays will do."""
        devices = mesh_size(self._mesh)
        share = lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] // devices, *leaf.shape[1:]), leaf.dtype)  # noqa: E731
        shapes = (state._replace(comm=()), jax.tree.map(share, batch))
        remembered = jax.tree.leaves(state.comm)
        gradients = messages_of(self._reducer, state.params, self._mesh.shape, self._order)
        _, result = jax.eval_shape(self._gradients, *shapes)
        others = messages_of(one_message(), result, self._mesh.shape)

        def messages(state: TrainState, batch: Batch) -> list[jax.Array]:
            grads, result = self._gradients(state, batch)
            return [*others.pack(result), *gradients.pack(before_sum(grads, state.scale, remembered))]

        summed = [Message(others.reducer, spec, "metrics") for spec in others.specs]
        summed += [Message(gradients.reducer, spec) for spec in gradients.specs]
        keep = self._skip is not None and bool(remembered)
        launch = lower_launch(messages, shapes, summed, self._mesh, at_once=self._at_once, keep=keep)
        update = lambda state, sums: self._update(state, sums, others, gradients, remembered)  # noqa: E731
        specs = [one.spec for one in summed]
        last = lower_here(UPDATE, update, (shapes[0], specs), self._mesh, donate=(0,))
        return LoweredPieces(launch, last, len(others.specs))

    def _gradients(self, state: TrainState, batch: Batch) -> tuple[PyTree, LossOutput]:
        keys = example_keys(state.key, state.step, batch["id"])
        loss = scaled(self._loss_fn, state.scale)
        return loss_gradient(loss, state.params, state.stats, batch, keys, self._microbatches)

    def _update(
        self, state: TrainState, sums: Sequence[jax.Array], others: Messages, gradients: Messages, comm: PyTree
    ) -> tuple[TrainState, Metrics]:
        devices, count = mesh_size(self._mesh), len(others.specs)
        by = divisor(devices, state.scale, comm)
        result = others.unpack([total / devices for total in sums[:count]])
        grads, result = per_weight(gradients.unpack([total / by for total in sums[count:]]), result)
        update = functools.partial(update_state, state, grads, result.stats, self._optimizer, self._average_decay)
        if self._skip is None:
            return update(), result.metrics
        return self._skip(update, state, (), grads, result.metrics)


def sums_by_message(strategy: Strategy) -> bool:
    """Whether a strategy sums gradients message by message, as the step in pieces needs."""
    return (
        strategy.kind == "replicated" and isinstance(strategy.reducer, Reducer) and strategy.reducer.message is not None
    )


@dataclass(frozen=True)
class StepInPieces:
    """See `Form`: all but the step is as in the replicated form.

    Raises:
        ValueError: the strategy does not sum gradients message by message.
    """

    strategy: Strategy
    mesh: Mesh
    options: StepOptions
    round_steps = 1

    def __post_init__(self) -> None:
        if not sums_by_message(self.strategy):
            raise ValueError(
                f"strategy {self.strategy.label!r} does not sum gradients message by message, as mode 'pieces' does"
            )

    @property
    def _whole(self) -> Replicated:
        return Replicated(self.strategy, self.mesh, replace(self.options, mode="shard_map"))

    def agree_after(self, step: int) -> bool:
        """Always: metrics are means over all devices."""
        return self._whole.agree_after(step)

    def reducer(self, params: PyTree) -> Reducer | None:
        """As in the replicated form."""
        return self._whole.reducer(params)

    def sharded_params(self, params: PyTree) -> ShardedParams | None:
        """None: the optimizer sees whole parameters."""
        return self._whole.sharded_params(params)

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer as it is."""
        return optimizer

    def layout(self, whole: TrainState, optimizer: optax.GradientTransformation, *, ensemble: bool = False) -> Layout:
        """The whole state on every device."""
        return self._whole.layout(whole, optimizer, ensemble=ensemble)

    def step(
        self, loss_fn: LossFn, optimizer: optax.GradientTransformation, layout: Layout | None = None
    ) -> PiecesStep:
        """Several programs, used as a `jax.jit` function is."""
        del layout
        return PiecesStep(loss_fn, optimizer, self.strategy, self.mesh, self.options)

    def plan(self, layout: Layout, traffic: Traffic) -> StepPlan:
        """As in the replicated form."""
        return self._whole.plan(layout, traffic)
