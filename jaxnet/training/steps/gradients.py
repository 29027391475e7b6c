"""Gradients of one device's share of a batch, over one or several microbatches."""

import jax
import jax.numpy as jnp

from jaxnet.training.loss import Batch, LossFn, PyTree, Result


def example_keys(key_data: jax.Array, step: jax.Array, ids: jax.Array) -> jax.Array:
    """One random key an example, [batch]: a function of the run's key, the step and the example's row.

    Of an ensemble, with a key a member, [batch, members].
    """

    def of_run(key: jax.Array) -> jax.Array:
        step_key = jax.random.fold_in(key, step)
        return jax.vmap(lambda row: jax.random.fold_in(step_key, row))(ids)

    keys = jax.random.wrap_key_data(key_data)
    return jax.vmap(of_run, out_axes=1)(keys) if keys.ndim else of_run(keys)


def loss_gradient(
    loss_fn: LossFn,
    params: PyTree,
    stats: PyTree,
    batch: Batch,
    keys: jax.Array,
    microbatches: int,
    groups: int = 1,
) -> tuple[PyTree, Result]:
    """Gradient of the mean loss over `batch`, computed a microbatch at a time.

    Running averages pass from one microbatch to the next. The last microbatch stands outside the loop, so its
    backward pass still yields gradients one by one and buckets can travel during it.

    Args:
        microbatches: how many parts the batch is taken in.
        groups: how many devices the batch's examples belong to: each part takes an equal share of each.
    """
    gradient = jax.value_and_grad(loss_fn, has_aux=True)
    if microbatches == 1:
        (_, result), grads = gradient(params, stats, batch, keys)
        return grads, result
    parts = jax.tree.map(lambda x: _parts(x, microbatches, groups), (batch, keys))
    first, middle, last = (jax.tree.map(lambda x, at=at: x[at], parts) for at in (0, slice(1, -1), -1))

    def add(carry: tuple[PyTree, Result], part: tuple[Batch, jax.Array]) -> tuple[tuple[PyTree, Result], None]:
        total, before = carry
        (_, result), grads = gradient(params, before.stats, *part)
        metrics = jax.tree.map(jnp.add, before.metrics, result.metrics)
        return (jax.tree.map(jnp.add, total, grads), Result(result.stats, metrics)), None

    # Start from the first part rather than from zeros: its values have the types that the loop must carry.
    (_, result), grads = gradient(params, stats, *first)
    carry = (grads, result)
    if microbatches > 2:
        carry, _ = jax.lax.scan(add, carry, middle)
    (grads, result), _ = add(carry, last)
    mean = lambda tree: jax.tree.map(lambda total: total / microbatches, tree)  # noqa: E731
    return mean(grads), Result(result.stats, mean(result.metrics))


def _parts(x: jax.Array, microbatches: int, groups: int) -> jax.Array:
    """[batch, ...] to [microbatches, batch / microbatches, ...], an equal share of every group in each part."""
    size = x.shape[0] // (groups * microbatches)
    grid = x.reshape(groups, microbatches, size, *x.shape[1:])
    return grid.swapaxes(0, 1).reshape(microbatches, groups * size, *x.shape[1:])
