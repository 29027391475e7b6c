"""Optimizer and learning-rate schedule, from a few plain numbers."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax

PyTree = Any


@dataclass(frozen=True)
class Optimizer:
    """A standard optimizer with a standard schedule.

    Attributes:
        name: 'sgd' (with momentum) or 'adamw'.
        learning_rate: at the peak of the schedule.
        schedule: after warm-up: 'cosine' to zero at the last step, 'linear' to zero, or 'constant'.
        warmup_steps: steps over which the rate rises linearly from zero.
        momentum: of SGD; b1 of AdamW.
        nesterov: Nesterov's momentum.
        weight_decay: added to the gradient by SGD, decoupled in AdamW; spares BatchNorm and biases.
        clip_norm: scale the gradient down to this global norm; None: do not.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    clip_norm: float | None = None


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


def make_optimizer(config: Optimizer, total_steps: int) -> optax.GradientTransformation:
    """The Optax transformation: clip, decay, momentum or Adam, schedule."""
    rate = learning_rate(config, total_steps)
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    if config.name == "adamw":
        adamw = optax.adamw(
            rate, b1=config.momentum, weight_decay=config.weight_decay, mask=decayed, nesterov=config.nesterov
        )
        return optax.chain(clip, adamw)
    decay = optax.add_decayed_weights(config.weight_decay, mask=decayed)
    return optax.chain(clip, decay, optax.sgd(rate, config.momentum, nesterov=config.nesterov))
