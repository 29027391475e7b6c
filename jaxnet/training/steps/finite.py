"""A step whose loss or gradient is not finite leaves the state as it was."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxnet.comm import Collective
from jaxnet.comm.collective import axes_size
from jaxnet.training.loss import PyTree
from jaxnet.training.steps.state import TrainState

SKIPPED, NOT_FINITE, LOSS_SCALE = "skipped", "not_finite", "loss_scale"
"""Metrics that a guarded step gives besides: whether it was skipped (float32 []), what was not finite (bool [1 +
leaves]: the metrics, then each leaf of the gradient), and the loss scale that it used, if there is one."""


class Skip(NamedTuple):
    """Ends a step: with the updated state, or with the old one.

    Attributes:
        axes: mesh axes over which gradients are in parts, so that no device sees all; usually none.
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
        """What `update` makes, where `metrics` and the mean gradient `grads` are finite; else `old`, one step further.

        `comm` is what the reducer remembers after this step.
        """
        bad = non_finite(metrics, grads, self.axes)
        good = ~bad.any()
        metrics = {**metrics, SKIPPED: 1.0 - good.astype(jnp.float32), NOT_FINITE: bad}
        state = _updated(good, update, old)._replace(step=old.step + 1)
        state = state._replace(comm=jax.tree.map(lambda new, kept: jnp.where(good, new, kept), comm, old.comm))
        if old.scale is not None:
            state, metrics[LOSS_SCALE] = state._replace(scale=old.scale.next(good)), old.scale.scale
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
    """Whether the metrics, and each leaf of `grads`, hold anything that is not finite: bool [1 + leaves].

    A leaf's sum tells it: a NaN or an infinity makes the sum one, and nothing is cheaper than one addition an
    element. A finite leaf whose sum overflows counts as not finite.
    """
    with jax.named_scope("guard"):
        sums = [sum(metrics.values()), *(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(grads))]
        if not axes:
            return ~jnp.isfinite(jnp.stack(sums))
        # Parts differ by device; metrics do not.
        parts = ~jnp.isfinite(jnp.stack(sums[1:]))
        found = lax.psum(parts.astype(jnp.float32), axes) > 0
        return jnp.concatenate([~jnp.isfinite(sums[0])[None], found])


def guard_plan(params: PyTree, axes: tuple[str, ...], axis_sizes: Mapping[str, int]) -> tuple[Collective, ...]:
    """The message of `Skip`: of parts, a float a leaf; else none, because every device holds the same sums."""
    devices = axes_size(axes, axis_sizes)
    if devices == 1:
        return ()
    return (Collective("all-reduce", axes, devices, len(jax.tree.leaves(params)), "float32"),)


def not_finite_names(params: PyTree) -> list[str]:
    """What each element of `non_finite` is about, for parameters of these shapes."""
    paths = [path for path, _ in jax.tree.leaves_with_path(params)]
    leaves = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    return ["the loss", *(f"the gradient of {leaf}" for leaf in leaves)]
