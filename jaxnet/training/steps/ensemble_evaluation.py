"""Exact evaluation of an ensemble: of each member, and of the mean of what they predict."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnet.comm import replicated, split_by_example
from jaxnet.models import Model, inference_options
from jaxnet.training.loss import Batch, Pixels, correct
from jaxnet.training.steps.evaluation import EvalStepFn, Totals

PyTree = Any


def make_ensemble_eval_step(model: Model, pixels: Pixels, mesh: Mesh) -> EvalStepFn:
    """As `make_eval_step`, for the model of an ensemble: sums [members + 1], the last ones those of the mean.

    The mean is that of the probabilities.
    """

    def step(totals: Totals, params: PyTree, stats: PyTree, batch: Batch) -> Totals:
        logits, _ = model.apply(params, stats, pixels.normalize(batch["image"]), train=False, keys=None)
        each = jax.nn.log_softmax(logits)
        mean = jax.nn.logsumexp(each, axis=0, keepdims=True) - jnp.log(len(each))
        weight = batch["weight"]

        def sums(values: jax.Array) -> tuple[jax.Array, jax.Array]:
            losses = optax.softmax_cross_entropy_with_integer_labels(values, batch["label"])
            return (losses * weight).sum(), (correct(values, batch["label"]) * weight).sum().astype(jnp.int32)

        losses, right = jax.vmap(sums)(jnp.concatenate([each, mean]))
        new = {"loss": losses, "correct": right, "examples": weight.sum().astype(jnp.int32)}
        return jax.tree.map(jnp.add, totals, new)

    everywhere = replicated(mesh)
    shardings = (everywhere, everywhere, everywhere, split_by_example(mesh))
    options = inference_options(mesh.devices.flat[0].platform)
    return jax.jit(step, in_shardings=shardings, out_shardings=everywhere, compiler_options=options)


def evaluate_ensemble(
    step: EvalStepFn, params: PyTree, stats: PyTree, batches: Iterable[Batch], mesh: Mesh
) -> dict[str, float]:
    """Mean loss and accuracy: of all members in the mean, of each, and of their mean prediction; and the examples."""
    members = len(jax.tree.leaves(params)[0])
    zeros = {"loss": jnp.zeros(members + 1), "correct": jnp.zeros(members + 1, jnp.int32), "examples": jnp.int32(0)}
    totals = jax.device_put(zeros, replicated(mesh))
    for batch in batches:
        totals = step(totals, params, stats, batch)
    sums = jax.device_get(totals)
    count = int(sums["examples"])
    names = [*(f"member_{index}" for index in range(members)), "ensemble"]
    result: dict[str, float] = {}
    for metric, total in (("loss", sums["loss"]), ("accuracy", sums["correct"])):
        values = [value.item() / count for value in total]
        result[metric] = sum(values[:-1]) / members
        result |= {f"{name}/{metric}": value for name, value in zip(names, values, strict=True)}
    return result | {"examples": count}
