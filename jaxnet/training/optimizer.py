"""Optimizer and learning-rate schedule, from a few plain numbers."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import optax

from jaxnet.comm import Collective
from jaxnet.comm.reducer import AxisSizes
from jaxnet.training.groups import in_groups, moving
from jaxnet.training.norms import Parts, clipped, decayed, layer_rates, norm_plan

PyTree = Any


@dataclass(frozen=True)
class Optimizer:
    """A standard optimizer with a standard schedule.

    Attributes:
        name: 'sgd' (with momentum), 'adamw', 'rmsprop' (as Inception was trained: decay 0.9, epsilon 1), or for large
            batches 'lars' and 'lamb' (SGD and Adam with rates scaled by layer; You et al., 2017 and 2020).
        learning_rate: at the peak of the schedule.
        reference_batch: the batch for which the rate is given; it is multiplied by batch_size / reference_batch
            (linear scaling; Goyal et al., 2017). None: the rate is that of the run's own batch.
        schedule: after warm-up: 'cosine' to zero at the last step, 'linear' to zero, 'polynomial' to zero, 'step'
            (see `milestones`), or 'constant'.
        milestones: of 'step': parts of the run, such as 1/3 and 2/3, after which the rate is multiplied by `factor`.
        factor: see `milestones`.
        power: of 'polynomial': the rate falls as `(1 - t)^power`, t from 0 to 1.
        warmup_steps: steps over which the rate first rises linearly to the peak.
        warmup_epochs: the same in epochs; set one of the two.
        warmup_from: where it begins, as a part of the peak.
        momentum: of SGD, LARS and RMSProp; b1 of AdamW and LAMB.
        nesterov: Nesterov's momentum, which makes AdamW NAdamW (Dozat, 2016); not of LAMB.
        weight_decay: added to the gradient by SGD, RMSProp and LARS, to the update by AdamW and LAMB; see `decayed`.
        clip_norm: scale the gradient down to this global norm; None: do not.
        trust_coefficient: of LARS: how far a step may move a layer, as a part of its norm.
        groups: (pattern, multiplier) of the learning rate of parameters whose path matches, such as ('head', 10) or
            ('layer1*', 0); the first that matches counts, and 0 freezes. On the command line: head:10,layer1*:0.
    """

    name: Literal["sgd", "adamw", "rmsprop", "lars", "lamb"] = "sgd"
    learning_rate: float = 0.1
    schedule: Literal["cosine", "linear", "polynomial", "step", "constant"] = "cosine"
    warmup_steps: int = 0
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float | None = None
    trust_coefficient: float = 0.001
    reference_batch: int | None = None
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    power: float = 2.0
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0
    groups: tuple[tuple[str, float], ...] = ()

    def for_run(self, batch_size: int, steps_per_epoch: float) -> Self:
        """The same with the rate for this batch, and warm-up in steps.

        >>> Optimizer(learning_rate=0.1, reference_batch=256).for_run(8192, steps_per_epoch=156.4).learning_rate
        3.2
        """
        scale = 1.0 if self.reference_batch is None else batch_size / self.reference_batch
        return replace(
            self,
            learning_rate=self.learning_rate * scale,
            reference_batch=None,
            warmup_steps=self.warmup_steps + round(self.warmup_epochs * steps_per_epoch),
            warmup_epochs=0.0,
        )


def learning_rate(config: Optimizer, total_steps: int) -> optax.Schedule:
    """The learning rate as a function of the step, from 0 to `total_steps`; see `Optimizer.for_run`."""
    peak, warmup = config.learning_rate, config.warmup_steps
    steps = max(1, total_steps - warmup)
    match config.schedule:
        case "cosine":
            main = optax.cosine_decay_schedule(peak, steps)
        case "linear":
            main = optax.linear_schedule(peak, 0.0, steps)
        case "polynomial":
            main = optax.polynomial_schedule(peak, 0.0, config.power, steps)
        case "step":
            # Milestones are parts of the whole run, and the schedule begins after warm-up.
            ends = [round(part * total_steps) - warmup for part in config.milestones]
            main = lambda step: peak * config.factor ** sum(step >= end for end in ends)  # noqa: E731
        case "constant":
            main = optax.constant_schedule(peak)
    if not warmup:
        return main
    rising = optax.linear_schedule(peak * config.warmup_from, peak, warmup)
    return optax.join_schedules([rising, main], [warmup])


def make_optimizer(config: Optimizer, total_steps: int, parts: Parts | None = None) -> optax.GradientTransformation:
    """The Optax transformation: clip, decay, momentum or Adam, schedule, groups.

    With `parts` it updates parts of the parameters, inside `jax.shard_map`, as it would update the whole; its
    state is then made from whole parameters and cut as they are.
    """
    rate = learning_rate(config, total_steps)

    def make(parts: Parts | None) -> optax.GradientTransformation:
        clip = optax.identity() if config.clip_norm is None else clipped(config.clip_norm, parts)
        return optax.chain(clip, *_rules(config, rate, parts))

    return in_groups(config.groups, make, parts) if config.groups else make(parts)


def _rules(config: Optimizer, rate: optax.Schedule, parts: Parts | None) -> list[optax.GradientTransformation]:
    mask = decayed if parts is None else decayed(parts.shapes)
    decay = optax.add_decayed_weights(config.weight_decay, mask=mask)
    momentum, nesterov = config.momentum, config.nesterov
    match config.name:
        case "sgd":
            return [decay, optax.sgd(rate, momentum, nesterov=nesterov)]
        case "adamw":
            return [optax.adamw(rate, b1=momentum, weight_decay=config.weight_decay, mask=mask, nesterov=nesterov)]
        case "rmsprop":
            rms = optax.rmsprop(rate, decay=0.9, eps=1.0, initial_scale=1.0, momentum=momentum, nesterov=nesterov)
            return [decay, rms]
        case "lars":
            # The rate comes before the momentum, as in the paper: a change of rate does not act on past gradients.
            scaled = layer_rates(config.trust_coefficient, config.weight_decay, parts)
            return [scaled, optax.scale_by_learning_rate(rate), optax.trace(momentum, nesterov)]
        case "lamb":
            adam = optax.scale_by_adam(b1=momentum, eps=1e-6)
            return [adam, decay, layer_rates(1.0, 0.0, parts), optax.scale_by_learning_rate(rate)]


def optimizer_plan(config: Optimizer, parts: Parts, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """What an update of parts sends: the norms that span devices."""
    by_layer = config.name in ("lars", "lamb")
    seen = moving(config.groups, parts) if config.groups else parts
    return norm_plan(config.clip_norm is not None, by_layer, seen, axis_sizes)
