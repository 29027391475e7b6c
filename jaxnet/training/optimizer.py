"""Optimizer and learning-rate schedule, from a few plain numbers."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax

from jaxnet.comm import Collective
from jaxnet.comm.reducer import AxisSizes
from jaxnet.training.norms import Parts, clipped, layer_rates, norm_plan

PyTree = Any


@dataclass(frozen=True)
class Optimizer:
    """A standard optimizer with a standard schedule.

    Attributes:
        name: 'sgd' (with momentum), 'adamw', or 'lars' (SGD whose rate is scaled by layer, for large batches).
        learning_rate: at the peak of the schedule.
        schedule: after warm-up: 'cosine' to zero at the last step, 'linear' to zero, or 'constant'.
        warmup_steps: steps over which the rate rises linearly from zero.
        momentum: of SGD and LARS; b1 of AdamW.
        nesterov: Nesterov's momentum.
        weight_decay: added to the gradient by SGD and LARS, decoupled in AdamW; spares BatchNorm and biases.
        clip_norm: scale the gradient down to this global norm; None: do not.
        trust_coefficient: of LARS: how far a step may move a layer, as a part of its norm.
    """

    name: Literal["sgd", "adamw", "lars"] = "sgd"
    learning_rate: float = 0.1
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    clip_norm: float | None = None
    trust_coefficient: float = 0.001


def learning_rate(config: Optimizer, total_steps: int) -> optax.Schedule:
    """The learning rate as a function of the step, from 0 to `total_steps`."""
    peak, steps = config.learning_rate, max(1, total_steps - config.warmup_steps)
    match config.schedule:
        case "cosine":
            main = optax.cosine_decay_schedule(peak, steps)
        case "linear":
            main = optax.linear_schedule(peak, 0.0, steps)
        case "constant":
            main = optax.constant_schedule(peak)
    if not config.warmup_steps:
        return main
    warmup = optax.linear_schedule(0.0, peak, config.warmup_steps)
    return optax.join_schedules([warmup, main], [config.warmup_steps])


def decayed(params: PyTree) -> PyTree:
    """Which leaves weight decay acts on: kernels, not BatchNorm's scale and bias nor other biases.

    >>> import jax.numpy as jnp
    >>> decayed({"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3)})
    {'bias': False, 'kernel': True}
    """
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def make_optimizer(config: Optimizer, total_steps: int, parts: Parts | None = None) -> optax.GradientTransformation:
    """The Optax transformation: clip, decay, momentum or Adam, schedule.

    With `parts` it updates parts of the parameters, inside `jax.shard_map`, as it would update the whole; its
    state is then made from whole parameters and cut as they are.
    """
    rate = learning_rate(config, total_steps)
    mask = decayed if parts is None else decayed(parts.shapes)
    clip = optax.identity() if config.clip_norm is None else clipped(config.clip_norm, parts)
    match config.name:
        case "sgd":
            decay = optax.add_decayed_weights(config.weight_decay, mask=mask)
            return optax.chain(clip, decay, optax.sgd(rate, config.momentum, nesterov=config.nesterov))
        case "adamw":
            adamw = optax.adamw(
                rate, b1=config.momentum, weight_decay=config.weight_decay, mask=mask, nesterov=config.nesterov
            )
            return optax.chain(clip, adamw)
        case "lars":
            return optax.chain(
                clip,
                layer_rates(config.trust_coefficient, config.weight_decay, parts),
                # The rate comes before the momentum, as in the paper: a change of rate does not act on past gradients.
                optax.scale_by_learning_rate(rate),
                optax.trace(config.momentum, config.nesterov),
            )


def optimizer_plan(config: Optimizer, parts: Parts, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """What an update of parts sends: the norms that span devices."""
    return norm_plan(config.clip_norm is not None, config.name == "lars", parts, axis_sizes)
