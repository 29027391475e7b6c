"""The arithmetic of a step: what one device does, and the same as one global program."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnet.comm import AXES, AllReduce, Collective, Reducer, all_reduce, bucketed
from jaxnet.comm.reducer import ReduceFn
from jaxnet.comm.vma import varying_axes
from jaxnet.training.loss import Batch, LossFn, PyTree, Result
from jaxnet.training.steps.finite import Skip
from jaxnet.training.steps.gradients import example_keys, loss_gradient
from jaxnet.training.steps.loss_scale import before_sum, divisor, scaled
from jaxnet.training.steps.state import TrainState

Metrics = dict[str, jax.Array]
StepFn = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def one_message(all_reduce: AllReduce = all_reduce) -> Reducer:
    """Sums all values over all devices, as one message."""
    return bucketed(all_reduce(*AXES), None)


_ONE_MESSAGE = one_message()


def device_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    reduce: ReduceFn,
    devices: int,
    tracked_axes: tuple[str, ...],
    microbatches: int = 1,
    average_decay: float | None = None,
    gather: Callable[[PyTree], PyTree] | None = None,
    together: Reducer = _ONE_MESSAGE,
    skip: Skip | None = None,
) -> StepFn:
    """The step of one device of `devices`, to run where both mesh axes are bound.

    `tracked_axes` are the axes over which values are made varying: those of the surrounding shard_map or pmap.
    With `gather` the state holds parameters in parts: it makes them whole, and `reduce` gives sums in parts.
    `together` sums what is not a gradient: metrics and running averages. `skip` ends the step: see `Skip`.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        keys = example_keys(state.key, state.step, batch["id"])
        params = state.params if gather is None else gather(state.params)
        # Without the cast JAX would sum the gradients itself, and the reducer once more.
        params = _varying(params, tracked_axes)
        loss = scaled(loss_fn, state.scale)
        grads, result = loss_gradient(loss, params, state.stats, batch, keys, microbatches)
        result = _mean(result, devices, tracked_axes, together)
        sums, comm_state = reduce(before_sum(grads, state.scale, state.comm), state.comm)
        count = divisor(devices, state.scale, state.comm)
        grads = jax.tree.map(lambda total: total / count, sums)
        update = functools.partial(update_state, state, grads, result.stats, optimizer, average_decay)
        if skip is None:
            return update()._replace(comm=comm_state), result.metrics
        return skip(update, state, comm_state, grads, result.metrics)

    return step


def global_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    devices: int,
    microbatches: int = 1,
    average_decay: float | None = None,
    skip: Skip | None = None,
) -> StepFn:
    """The step as one program over the global batch, for XLA to partition over `devices`."""

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        keys = example_keys(state.key, state.step, batch["id"])
        loss = scaled(loss_fn, state.scale)
        grads, result = loss_gradient(loss, state.params, state.stats, batch, keys, microbatches, groups=devices)
        count = divisor(1, state.scale, ())
        grads = jax.tree.map(lambda mean: mean / count, grads)
        update = functools.partial(update_state, state, grads, result.stats, optimizer, average_decay)
        return (update(), result.metrics) if skip is None else skip(update, state, (), grads, result.metrics)

    return step


def _varying(tree: PyTree, axes: tuple[str, ...]) -> PyTree:
    # What is cut over the devices of a host varies over them by itself.
    return jax.tree.map(lambda leaf: lax.pcast(leaf, tuple(set(axes) - varying_axes(leaf)), to="varying"), tree)


def _mean(result: Result, devices: int, tracked_axes: tuple[str, ...], together: Reducer) -> Result:
    """Metrics and running averages as means over devices, in one small message.

    Running averages are linear in what each device contributes, and the forward pass of training does not read
    them, so their mean taken every step is their mean taken once before evaluation. What global BatchNorm has
    already made the same everywhere is left alone.
    """
    leaves, tree = jax.tree.flatten(result)
    differs = [tracked_axes != AXES or bool(varying_axes(leaf)) for leaf in leaves]
    parts = [leaf for leaf, d in zip(leaves, differs, strict=True) if d]
    if tracked_axes == AXES:
        parts = [lax.pcast(leaf, tuple(set(AXES) - varying_axes(leaf)), to="varying") for leaf in parts]
    with jax.named_scope("metrics"):
        sums, _ = together.reduce(parts, together.init(parts, dict.fromkeys(AXES, 1)))
    means = iter(sums)
    return jax.tree.unflatten(tree, [next(means) / devices if d else x for x, d in zip(leaves, differs, strict=True)])


def mean_plan(
    stats: PyTree, metrics: int, axis_sizes: Mapping[str, int], together: Reducer = _ONE_MESSAGE
) -> tuple[Collective, ...]:
    """The message of `_mean` for `metrics` scalars and running averages of these shapes."""
    scalars = [jax.ShapeDtypeStruct((), "float32")] * metrics
    return together.plan([stats, scalars], axis_sizes).collectives


def warmed_decay(decay: float, steps: jax.Array) -> jax.Array:
    """The decay of a moving average after `steps` steps: `min(decay, (1 + steps) / (10 + steps))`.

    Otherwise the random parameters of the start would stay in it for `1 / (1 - decay)` steps. As TensorFlow's
    `ExponentialMovingAverage` with `num_updates` has it, by which Inception was trained.

    >>> [round(float(warmed_decay(0.9, jnp.array(steps))), 2) for steps in (0, 10, 1000)]
    [0.1, 0.55, 0.9]
    """
    return jnp.minimum(decay, (1.0 + steps) / (10.0 + steps))


def update_state(
    state: TrainState,
    grads: PyTree,
    stats: PyTree,
    optimizer: optax.GradientTransformation,
    average_decay: float | None,
) -> TrainState:
    """The state after this gradient: optimizer, parameters and their moving average, and the count of steps."""
    updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    average = state.average
    if average_decay is not None:
        average = optax.incremental_update(params, state.average, 1 - warmed_decay(average_decay, state.step))
    return state._replace(step=state.step + 1, params=params, stats=stats, optimizer=optimizer_state, average=average)
