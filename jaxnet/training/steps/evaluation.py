"""Exact evaluation: every example counts once, on any number of devices and processes."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnet.comm import replicated, split_by_example
from jaxnet.models import Model, inference_options
from jaxnet.training.loss import Batch, Pixels, correct

PyTree = Any
Totals = dict[str, jax.Array]
EvalStepFn = Callable[[Totals, PyTree, PyTree, Batch], Totals]
Across = Callable[[dict[str, float]], dict[str, float]]


def _alone(sums: dict[str, float]) -> dict[str, float]:
    return sums


def make_eval_step(model: Model, pixels: Pixels, mesh: Mesh) -> EvalStepFn:
    """`step(totals, params, stats, batch) -> totals`: sums over examples, weighted by `batch['weight']`.

    Padding has weight 0. Sums of loss are float32, of counts int32: exact to two billion examples.
    """

    def step(totals: Totals, params: PyTree, stats: PyTree, batch: Batch) -> Totals:
        logits, _ = model.apply(params, stats, pixels.normalize(batch["image"]), train=False, keys=None)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        weight = batch["weight"]
        sums = {
            "loss": (losses * weight).sum(),
            "correct": (correct(logits, batch["label"]) * weight).sum().astype(jnp.int32),
            "examples": weight.sum().astype(jnp.int32),
        }
        return jax.tree.map(jnp.add, totals, sums)

    everywhere = replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(everywhere, everywhere, everywhere, split_by_example(mesh)),
        out_shardings=everywhere,
        compiler_options=inference_options(mesh.devices.flat[0].platform),
    )


def evaluate(
    step: EvalStepFn, params: PyTree, stats: PyTree, batches: Iterable[Batch], mesh: Mesh, across: Across = _alone
) -> dict[str, float]:
    """Mean loss, accuracy and number of examples over `batches`; `across` sums over what is not of the mesh."""
    zeros = {"loss": jnp.zeros(()), "correct": jnp.zeros((), jnp.int32), "examples": jnp.zeros((), jnp.int32)}
    totals = jax.device_put(zeros, replicated(mesh))
    for batch in batches:
        totals = step(totals, params, stats, batch)
    sums = across({name: total.item() for name, total in jax.device_get(totals).items()})
    count = sums["examples"]
    return {"loss": sums["loss"] / count, "accuracy": sums["correct"] / count, "examples": count}
