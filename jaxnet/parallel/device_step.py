"""The arithmetic of a step: what one device does, and the same as one global program."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnet.comm import (
    AXES,
    AllReduce,
    Collective,
    ReduceFn,
    Reducer,
    all_reduce,
    axes_size,
    bucketed,
    untracked,
    varying_along,
    varying_axes,
)
from jaxnet.models import fast_keys, leaf_name
from jaxnet.parallel.kernel_gradients import fast_kernel_gradients
from jaxnet.parallel.state import (
    LossScale,
    TrainState,
    before_sum,
    divided,
    divisor,
    moved_average,
    scaled,
    wide_dtype,
)
from jaxnet.tasks.task import WEIGHT, Batch, LossFn, LossOutput, PyTree

# ---- Gradients of one device's share of a batch, over one or several microbatches ---------------------


def example_keys(key_data: jax.Array, step: jax.Array, ids: jax.Array) -> jax.Array:
    """One random key an example, [batch]: a function of the run's key, the step and the example's row.

    Of an ensemble, with a key a member, [batch, members].
    """

    def of_run(key: jax.Array) -> jax.Array:
        step_key = jax.random.fold_in(key, step)
        return jax.vmap(lambda row: jax.random.fold_in(step_key, row))(ids)

    keys = fast_keys(jax.random.wrap_key_data(key_data))
    return jax.vmap(of_run, out_axes=1)(keys) if keys.ndim else of_run(keys)


def value_and_gradient(loss_fn: LossFn) -> Callable[..., tuple[tuple[jax.Array, LossOutput], PyTree]]:
    """`jax.value_and_grad` of a loss that returns more than its value, with products that are fast on CPUs."""
    return fast_kernel_gradients(jax.value_and_grad(_with_any_loop(loss_fn), has_aux=True))


def _with_any_loop(loss_fn: LossFn) -> LossFn:
    """The same loss, `untracked` where it fails otherwise: a model knows nothing of what differs between devices.

    What fails in both ways is reported as it was, such as a mistake in the model.
    """

    def loss(params: PyTree, stats: PyTree, batch: Batch, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
        try:
            return loss_fn(params, stats, batch, keys)
        except Exception as error:
            if not any(varying_axes(leaf) for leaf in jax.tree.leaves((params, stats, batch, keys))):
                raise
            try:
                made: tuple[jax.Array, LossOutput] = untracked(loss_fn)(params, stats, batch, keys)
            except Exception:  # whatever a stranger's code raises
                raise error from None
            return made

    return loss


def loss_gradient(
    loss_fn: LossFn,
    params: PyTree,
    stats: PyTree,
    batch: Batch,
    keys: jax.Array,
    microbatches: int,
    groups: int = 1,
) -> tuple[PyTree, LossOutput]:
    """Gradient of the mean loss over `batch`, computed a microbatch at a time.

    Running averages pass from one microbatch to the next. The last microbatch stands outside the loop, so its
    backward pass still yields gradients one by one and buckets can travel during it. Gradients of 16 bits are added up
    in float32: of many alike, in bfloat16 the 257th would add nothing to the sum of those before.

    Args:
        microbatches: how many parts the batch is taken in.
        groups: how many devices the batch's examples belong to: each part takes an equal share of each.
    """
    gradient = value_and_gradient(loss_fn)
    if microbatches == 1:
        (_, result), grads = gradient(params, stats, batch, keys)
        return grads, result
    parts = jax.tree.map(lambda x: _parts(x, microbatches, groups), (batch, keys))
    first, middle, last = (jax.tree.map(lambda x, at=at: x[at], parts) for at in (0, slice(1, -1), -1))

    widened = lambda grads: jax.tree.map(lambda grad: grad.astype(wide_dtype(grad.dtype)), grads)  # noqa: E731

    def add(carry: tuple[PyTree, LossOutput], part: tuple[Batch, jax.Array]) -> tuple[tuple[PyTree, LossOutput], None]:
        total, before = carry
        (_, result), grads = gradient(params, before.stats, *part)
        metrics = jax.tree.map(jnp.add, before.metrics, result.metrics)
        return (jax.tree.map(jnp.add, total, widened(grads)), LossOutput(result.stats, metrics)), None

    # Start from the first part rather than from zeros: its values have the types that the loop must carry.
    (_, result), grads = gradient(params, stats, *first)
    carry = (widened(grads), result)
    if microbatches > 2:
        carry, _ = jax.lax.scan(add, carry, middle)
    (total, result), _ = add(carry, last)
    mean = lambda tree: jax.tree.map(lambda total: total / microbatches, tree)  # noqa: E731
    grads = jax.tree.map(lambda each, grad: each.astype(grad.dtype), mean(total), grads)
    return grads, LossOutput(result.stats, mean(result.metrics))


def per_weight(grads: PyTree, result: LossOutput) -> tuple[PyTree, LossOutput]:
    """Gradient and metrics of a unit of weight, where the examples have weights; else as they are.

    Of two devices with 3 and 1 tokens, each loss being the sum over its tokens:

        grads  (6 + 4) / 2 = 5      metrics['weight']  (3 + 1) / 2 = 2      5 / 2 = 10 / 4: the mean over all tokens

    The mean weight travels with the metrics, so it costs one number in a message that is sent anyway.
    """
    if WEIGHT not in result.metrics:
        return grads, result
    weight = result.metrics[WEIGHT]
    metrics = {name: value / weight for name, value in result.metrics.items() if name != WEIGHT}
    return divided(grads, weight), LossOutput(result.stats, metrics)


def _parts(x: jax.Array, microbatches: int, groups: int) -> jax.Array:
    """[batch, ...] to [microbatches, batch / microbatches, ...], an equal share of every group in each part."""
    size = x.shape[0] // (groups * microbatches)
    grid = x.reshape(groups, microbatches, size, *x.shape[1:])
    return grid.swapaxes(0, 1).reshape(microbatches, groups * size, *x.shape[1:])


# ---- A step whose loss or gradient is not finite leaves the state as it was ---------------------------


SKIPPED, NOT_FINITE, LOSS_SCALE = "skipped", "not_finite", "loss_scale"
"""Metrics that a guarded step gives besides: whether it was skipped (float32 []), what was not finite (bool [1 +
leaves]: the loss, then each leaf of the gradient), and the loss scale that it used, if there is one."""


class Skip(NamedTuple):
    """Ends a step: with the updated state, or with the old one.

    Attributes:
        axes: mesh axes over which gradients are in shards, so that no device sees all; usually none.
    """

    axes: tuple[str, ...] = ()

    def __call__(
        self,
        update: Callable[[], TrainState],
        old: TrainState,
        comm: PyTree,
        grads: PyTree,
        metrics: dict[str, jax.Array],
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """What `update` makes, where the loss and `grads` are finite; else `old`, one step further.

        `comm` is what the reducer remembers after this step. `grads` is the sum that the update divides, or the mean.
        """
        return unless_any(non_finite(metrics, grads, self.axes), update, old, comm, metrics)


def unless_any(
    bad: jax.Array, update: Callable[[], TrainState], old: TrainState, comm: PyTree, metrics: dict[str, jax.Array]
) -> tuple[TrainState, dict[str, jax.Array]]:
    """See `Skip`: what `update` makes, or `old` where any is `bad`, which `non_finite` has found."""
    good = ~bad.any()
    state = _updated(good, update, old)._replace(step=old.step + 1)
    state = state._replace(comm=jax.tree.map(lambda new, kept: jnp.where(good, new, kept), comm, old.comm))
    return with_verdict(state, metrics, bad, old.scale)


def with_verdict(
    state: TrainState, metrics: Mapping[str, jax.Array], bad: jax.Array, scale: LossScale | None
) -> tuple[TrainState, dict[str, jax.Array]]:
    """A state and metrics with what the guard says: what was `bad`, the `scale` that was used, and the next one."""
    good = ~bad.any()
    metrics = {**metrics, SKIPPED: 1.0 - good.astype(jnp.float32), NOT_FINITE: bad}
    if scale is not None:
        state, metrics[LOSS_SCALE] = state._replace(scale=scale.next(good)), scale.scale
    return state, metrics


def _updated(good: jax.Array, update: Callable[[], TrainState], old: TrainState) -> TrainState:
    """What `update` makes of `old` or, if not `good`, `old`, bit for bit.

    The update stands inside the branch, where it works in place on what is donated. Chosen from afterwards, an element
    at a time or by a branch, old and new are needed at once, and the compiler copies the optimizer's state or all.
    """

    def changed(state: TrainState) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        return state.params, state.stats, state.optimizer, state.average

    params, stats, optimizer, average = lax.cond(good, lambda: changed(update()), lambda: changed(old))
    return old._replace(params=params, stats=stats, optimizer=optimizer, average=average)


def non_finite(metrics: Mapping[str, jax.Array], grads: PyTree, axes: tuple[str, ...] = ()) -> jax.Array:
    """Whether the loss, and each leaf of `grads`, hold anything that is not finite: bool [1 + leaves].

    A leaf's sum tells it: a NaN or an infinity makes the sum one, and nothing is cheaper than one addition an
    element. A finite leaf whose sum overflows counts as not finite. Other metrics may be NaN, such as a ratio of which
    an example has none: they change no parameter.
    """
    with jax.named_scope("guard"):
        sums = [metrics["loss"], *(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(grads))]
        if not axes or not sums[1:]:
            return ~jnp.isfinite(jnp.stack(sums))
        # Parts differ by device; metrics do not.
        parts = ~jnp.isfinite(jnp.stack(sums[1:]))
        found = lax.psum(parts.astype(jnp.float32), axes) > 0
        return jnp.concatenate([~jnp.isfinite(sums[0])[None], found])


def non_finite_in(
    metrics: Mapping[str, jax.Array], messages: Sequence[jax.Array], unpack: Callable[[Sequence[jax.Array]], PyTree]
) -> jax.Array:
    """`non_finite(metrics, unpack(messages))`, where leaves are looked at only if a message is not finite.

    To sum a leaf by itself that lies in a message, XLA:CPU copies it out first: all gradients once more.
    """
    count = len(jax.tree.leaves(jax.eval_shape(unpack, messages)))
    none = jnp.zeros(1 + count, bool)
    any_bad = non_finite(metrics, messages).any()
    return lax.cond(any_bad, lambda: non_finite(metrics, unpack(messages)), lambda: none)


def guard_plan(params: PyTree, axes: tuple[str, ...], axis_sizes: Mapping[str, int]) -> tuple[Collective, ...]:
    """What `Skip` sends where leaves are in parts over `axes`: an all-reduce of a float32 a leaf.

    Without `axes` nothing, because every device holds the same sums.
    """
    devices = axes_size(axes, axis_sizes)
    if devices == 1:
        return ()
    return (Collective("all-reduce", axes, devices, len(jax.tree.leaves(params)), "float32"),)


def not_finite_names(params: PyTree) -> list[str]:
    """What each element of `non_finite` is about, for parameters of these shapes."""
    paths = [path for path, _ in jax.tree.leaves_with_path(params)]
    leaves = [leaf_name(path) for path in paths]
    return ["the loss", *(f"the gradient of {leaf}" for leaf in leaves)]


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

    Args:
        loss_fn: a mean over examples, or with weights a sum.
        optimizer: of whole parameters, or of shards.
        reduce: (gradients, its state) -> (sums over all devices, its next state).
        devices: by which sums are divided; with MPI those of all ranks.
        tracked_axes: over which values are made varying: both axes in shard_map, 'device' in pmap.
        microbatches: parts in which the device's share of a batch is taken.
        average_decay: of the moving average of the parameters; None: there is none.
        gather: makes the state's shards of the parameters whole; `reduce` then gives shards of the sums.
        together: sums what is not a gradient: metrics and running averages.
        skip: ends the step, see `Skip`; None: every step counts.
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
        update, metrics = update_by_sum(state, sums, count, result, optimizer, average_decay)
        if skip is None:
            return update()._replace(comm=comm_state), metrics
        return skip(update, state, comm_state, sums, metrics)

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
        update, metrics = update_by_sum(state, grads, count, result, optimizer, average_decay)
        return (update(), metrics) if skip is None else skip(update, state, (), grads, metrics)

    return step


def update_by_sum(
    state: TrainState,
    sums: PyTree,
    count: int | jax.Array,
    result: LossOutput,
    optimizer: optax.GradientTransformation,
    average_decay: float | None,
    unpack: Callable[[PyTree], PyTree] = lambda sums: sums,
) -> tuple[Callable[[], TrainState], Metrics]:
    """The update by the mean gradient, `sums / count` a unit of weight, for `Skip` to call; and the step's metrics.

    The division belongs to the update, and with messages for `sums` so does `unpack`, which makes leaves of them.
    Outside of the branch in which `Skip` puts the update, leaves and means would be written to memory and read again,
    which is once more the size of the gradient.
    """

    def update() -> TrainState:
        grads, _ = per_weight(divided(unpack(sums), count), result)
        return update_state(state, grads, result.stats, optimizer, average_decay)

    return update, per_weight((), result)[1].metrics


def _varying(tree: PyTree, axes: tuple[str, ...]) -> PyTree:
    # What is cut over the devices of a host varies over them by itself.
    return jax.tree.map(lambda leaf: varying_along(leaf, axes), tree)


def _mean(result: LossOutput, devices: int, tracked_axes: tuple[str, ...], together: Reducer) -> LossOutput:
    """Metrics and running averages as means over devices, in one small message.

    Running averages are linear in what each device contributes, and the forward pass of training does not read
    them, so their mean taken every step is their mean taken once before evaluation. What global BatchNorm has
    already made the same everywhere is left alone.
    """
    leaves, tree = jax.tree.flatten(result)
    differs = [tracked_axes != AXES or bool(varying_axes(leaf)) for leaf in leaves]
    parts = [leaf for leaf, d in zip(leaves, differs, strict=True) if d]
    if tracked_axes == AXES:
        parts = [varying_along(leaf, AXES) for leaf in parts]
    with jax.named_scope("metrics"):
        sums, _ = together.reduce(parts, together.init(parts, dict.fromkeys(AXES, 1)))
    means = iter([mean_of(total, devices) for total in sums])
    return jax.tree.unflatten(tree, [next(means) if d else x for x, d in zip(leaves, differs, strict=True)])


def mean_of(total: jax.Array, devices: int) -> jax.Array:
    """A sum over devices as their mean, in its dtype; of integers, such as counts of steps, rounded down."""
    return total // devices if jnp.issubdtype(total.dtype, jnp.integer) else total / devices


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
    # Zeros that it makes anew, as Adafactor does, are typed as the same on all devices, where a device has its own.
    optimizer_state = jax.tree.map(
        lambda new, old: varying_along(new, varying_axes(old)), optimizer_state, state.optimizer
    )
    params = optax.apply_updates(state.params, updates)
    average = state.average
    if average_decay is not None:
        average = moved_average(params, state.average, warmed_decay(average_decay, state.step))
    return state._replace(step=state.step + 1, params=params, stats=stats, optimizer=optimizer_state, average=average)
