"""The local form: each device updates a copy of its own, and every so many steps all take the mean.

One step, on each device (all branches are taken by all devices alike, because the step number decides):

1. the gradient of the device's own examples; in the first, synchronous steps the mean over all devices;
2. the device's optimizer updates its own parameters;
3. if a round ends: the mean of parameters, running averages and metrics takes their place. BMUF filters it first.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh

from jaxnet.comm import (
    AXES,
    BOUND_AXES,
    Averaging,
    BlockFilter,
    Collective,
    Reducer,
    Strategy,
    mesh_size,
    same_along,
    varying_along,
)
from jaxnet.optimizer import ShardedParams
from jaxnet.parallel.device_step import (
    NOT_FINITE,
    SKIPPED,
    Metrics,
    Skip,
    StepFn,
    example_keys,
    loss_gradient,
    mean_of,
    per_weight,
    update_state,
    warmed_decay,
)
from jaxnet.parallel.form import StepOptions, StepPlan, Traffic, leaves_by_path
from jaxnet.parallel.layout import Layout, copied_kinds
from jaxnet.parallel.replicated import shard_mapped
from jaxnet.parallel.state import TrainState, moved_average
from jaxnet.tasks.task import Batch, LossFn, LossOutput, PyTree


class Exchange(NamedTuple):
    """What travels together; between rounds, a device's own.

    Attributes:
        params: the parameters, or in a synchronous step the gradients.
        stats: BatchNorm's running averages.
        metrics: of the step.
        optimizer: float leaves of the optimizer's state, where they are averaged too.
    """

    params: PyTree
    stats: PyTree
    metrics: PyTree
    optimizer: list[jax.Array]


class BlockFilterState(NamedTuple):
    """State of an optimizer under block-wise filtering.

    Attributes:
        own: that of the device's own optimizer.
        anchor: the parameters with which all devices began the round.
        delta: what the last round changed, smoothed.
    """

    own: PyTree
    anchor: PyTree
    delta: PyTree


@dataclass(frozen=True)
class LocalUpdate:
    """See `Form`.

    Raises:
        ValueError: another mode than 'shard_map'.
    """

    strategy: Strategy
    mesh: Mesh
    options: StepOptions

    def __post_init__(self) -> None:
        if self.options.mode != "shard_map":
            raise ValueError(
                f"strategy {self.strategy.label!r} gives each device parameters of its own: it takes mode 'shard_map'"
            )

    @property
    def averaging(self) -> Averaging:
        """When devices take the mean, and what is done with it."""
        assert isinstance(self.strategy.schedule, Averaging)
        return self.strategy.schedule

    @property
    def round_steps(self) -> int:
        """Steps between two means."""
        return self.averaging.every

    def agree_after(self, step: int) -> bool:
        """In the synchronous steps, and where a round ends."""
        return step <= self.averaging.synchronous_steps or step % self.averaging.every == 0

    def reducer(self, params: PyTree = None) -> Reducer:
        """What sums the parameters when a round ends."""
        del params
        assert isinstance(self.strategy.reducer, Reducer)
        return self.strategy.reducer

    def sharded_params(self, params: PyTree) -> ShardedParams | None:
        """None: each device updates all parameters of its copy."""
        del params
        return None

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The device's own optimizer, with room for what block filtering remembers from round to round."""
        if self.averaging.block is None:
            return optimizer

        def init(params: PyTree) -> BlockFilterState:
            # A copy, because every leaf of the state is donated and must be a buffer of its own.
            anchor, delta = jax.tree.map(jnp.copy, params), jax.tree.map(jnp.zeros_like, params)
            return BlockFilterState(optimizer.init(params), anchor, delta)

        def update(grads: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, BlockFilterState]:
            updates, own = optimizer.update(grads, state.own, params)
            return updates, state._replace(own=own)

        return optax.GradientTransformation(init, update)

    def layout(self, whole: TrainState, optimizer: optax.GradientTransformation) -> Layout:
        """A copy on each device of all that an update changes."""
        del optimizer
        return Layout(self.mesh, (), whole, copied_kinds(whole))

    def step(self, loss_fn: LossFn, optimizer: optax.GradientTransformation, layout: Layout) -> jax.stages.Wrapped:
        """One program for all steps, in which a round ends or not."""
        options, devices = self.options, mesh_size(self.mesh)
        step = local_step(
            *(loss_fn, optimizer, self.averaging, self.reducer(), devices),
            *(options.microbatches, options.average_decay),
            skip=Skip() if options.skip else None,
        )
        return shard_mapped(step, self.mesh, layout.specs, options.compiler)

    def plan(self, layout: Layout, traffic: Traffic) -> StepPlan:
        """The means at the end of a round, and the synchronous steps before; each counts as often as it runs."""
        averaging, reducer, state = self.averaging, self.reducer(), layout.whole_shapes
        end = exchanged(state, averaging, traffic.metrics + self.options.skip)
        means = reducer.plan(end, self.mesh.shape)
        gradients: tuple[Collective, ...] = ()
        if averaging.synchronous_steps:
            sent = exchanged(state, averaging, traffic.metrics + traffic.weighted)._replace(optimizer=[])
            gradients = reducer.plan(sent, self.mesh.shape).collectives
        steps = traffic.total_steps
        shares = (averaging.synchronous_share(steps),) * len(gradients)
        shares += (averaging.averaging_share(steps),) * len(means.collectives)
        return StepPlan(gradients + means.collectives, shares, leaves_by_path(end), means.buckets)


def local_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    averaging: Averaging,
    reducer: Reducer,
    devices: int,
    microbatches: int = 1,
    average_decay: float | None = None,
    skip: Skip | None = None,
) -> StepFn:
    """The step of one device of `devices`, on a state of its own, to run inside `jax.shard_map` over both axes.

    What travels does so in branches that all devices take in the same steps, because the step number decides.
    The moving average is one of what devices hold in common: a round of k steps moves it once, by `1 - d^k`. A device
    skips a step by itself; the metric `skipped` is the mean over devices where a round ends.
    """
    mean = _mean_over(devices, reducer)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        keys = example_keys(state.key, state.step, batch["id"])
        grads, result = loss_gradient(loss_fn, state.params, state.stats, batch, keys, microbatches)
        synchronous = state.step < averaging.synchronous_steps
        ends = ~synchronous & ((state.step + 1) % averaging.every == 0)
        own = jax.tree.map(_varying, Exchange(grads, result.stats, result.metrics, []))
        if averaging.synchronous_steps:
            own = lax.cond(synchronous, mean, lambda exchange: exchange, own)
        # Of a device that trains by itself these are its own weights, else those of all.
        grads, result = per_weight(own.params, LossOutput(own.stats, own.metrics))
        update = functools.partial(update_state, state, grads, result.stats, optimizer, None)
        moves, found = synchronous, {}
        if skip is None:
            state, metrics = update(), result.metrics
        else:
            state, metrics = skip(update, state, state.comm, grads, result.metrics)
            moves, found = synchronous & (metrics[SKIPPED] == 0), {NOT_FINITE: metrics.pop(NOT_FINITE)}
        if averaging.synchronous_steps:
            state = state._replace(optimizer=_anchored(state.optimizer, state.params, synchronous))
        state, metrics = _round_end(state, metrics, ends, averaging, devices, mean)
        if average_decay is not None:
            decay = warmed_decay(average_decay, state.step - 1)
            kept = jnp.where(moves, decay, jnp.where(ends, decay**averaging.every, 1.0))
            state = state._replace(average=moved_average(state.params, state.average, kept))
        # Between rounds these are the device's own, and nothing travels only to have them read.
        return state, jax.tree.map(lambda value: same_along(value, AXES), metrics | found)

    return step


def _round_end(
    state: TrainState,
    metrics: Metrics,
    ends: jax.Array,
    averaging: Averaging,
    devices: int,
    mean: Callable[[Exchange], Exchange],
) -> tuple[TrainState, Metrics]:
    """Everything as it is, or where the round `ends` the means of it."""

    def averaged(own: Exchange, blocked: BlockFilterState | None) -> tuple[Exchange, BlockFilterState | None]:
        means = mean(own)
        if averaging.block is None or blocked is None:
            return means, None
        moved = _filtered(averaging.block, devices, means.params, blocked)
        return means._replace(params=moved.anchor), moved

    own, blocked = _parted(state.optimizer)
    floats = _floats(own) if averaging.with_optimizer else []
    exchange = Exchange(state.params, state.stats, metrics, floats)
    after, blocked = lax.cond(ends, averaged, lambda *same: same, exchange, blocked)
    if averaging.with_optimizer:
        own = _with_floats(own, after.optimizer)
    optimizer_state = own if blocked is None else blocked._replace(own=own)
    return state._replace(params=after.params, stats=after.stats, optimizer=optimizer_state), after.metrics


def _anchored(optimizer_state: PyTree, params: PyTree, synchronous: jax.Array) -> PyTree:
    """With the parameters of a synchronous step as those with which the next round begins, where that is remembered."""
    if not isinstance(optimizer_state, BlockFilterState):
        return optimizer_state
    anchor = jax.tree.map(lambda new, old: jnp.where(synchronous, new, old), params, optimizer_state.anchor)
    return optimizer_state._replace(anchor=anchor)


def _filtered(block: BlockFilter, devices: int, mean: PyTree, state: BlockFilterState) -> BlockFilterState:
    momentum = block.momentum_among(devices)
    delta = jax.tree.map(
        lambda old, new, anchor: momentum * old + block.rate * (new - anchor), state.delta, mean, state.anchor
    )
    return state._replace(anchor=jax.tree.map(jnp.add, state.anchor, delta), delta=delta)


def _mean_over(devices: int, reducer: Reducer) -> Callable[[Exchange], Exchange]:
    def mean(own: Exchange) -> Exchange:
        sums, _ = reducer.reduce(own, reducer.init(own, BOUND_AXES))
        means: Exchange = jax.tree.map(lambda total: _varying(mean_of(total, devices)), sums)
        return means

    return mean


def _varying(leaf: jax.Array) -> jax.Array:
    return varying_along(leaf, AXES)


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def averaged_state(optimizer_state: PyTree) -> list[Any]:
    """The leaves of an optimizer's state that `with_optimizer` averages: floats, without what is block-filtered."""
    own, _ = _parted(optimizer_state)
    return _floats(own)


def _floats(optimizer_state: PyTree) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(optimizer_state) if _is_float(leaf)]


def _with_floats(optimizer_state: PyTree, floats: list[jax.Array]) -> PyTree:
    means = iter(floats)
    return jax.tree.map(lambda leaf: next(means) if _is_float(leaf) else leaf, optimizer_state)


def _parted(optimizer_state: PyTree) -> tuple[PyTree, BlockFilterState | None]:
    """The state of the device's own optimizer, and what is filtered; None if nothing is."""
    if isinstance(optimizer_state, BlockFilterState):
        return optimizer_state.own, optimizer_state._replace(own=None)
    return optimizer_state, None


def exchanged(state: TrainState, averaging: Averaging, metrics: int) -> Exchange:
    """Shapes of what travels at the end of a round, for whole states of these shapes and so many metrics."""
    scalars = [jax.ShapeDtypeStruct((), "float32")] * metrics
    floats = averaged_state(state.optimizer) if averaging.with_optimizer else []
    return Exchange(state.params, state.stats, scalars, floats)
