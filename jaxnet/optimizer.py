"""Optimizer and learning-rate schedule, from a few plain numbers."""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnet.comm import AxisSizes, Collective, axes_size, varying_axes
from jaxnet.errors import InputError

# ---- Norms of layers, also where each device holds a part of every layer; and the two updates that need them


PyTree = Any


class ShardedParams(NamedTuple):
    """That an optimizer sees parts of the parameters, one a device; of some, perhaps, the whole.

    Attributes:
        shapes: of the whole parameters.
        axes: the mesh axes over which the parts are spread, bound where the optimizer runs.
    """

    shapes: PyTree
    axes: tuple[str, ...]


_NO_KERNELS = ("bias", "scale", "cls_token", "pos_embed")


def decayed(params: PyTree) -> PyTree:
    """Which leaves weight decay and rates by layer act on: kernels.

    Not BatchNorm's scale and bias, nor other biases, of whatever shape, nor a ViT's class token and positions.

    >>> import jax.numpy as jnp
    >>> decayed({"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3), "query": {"bias": jnp.zeros((2, 3))}})
    {'bias': False, 'kernel': True, 'query': {'bias': False}}
    """

    def is_kernel(path: tuple[Any, ...], leaf: Any) -> bool:
        return leaf.ndim > 1 and jax.tree_util.keystr(path[-1:], simple=True) not in _NO_KERNELS

    return jax.tree.map_with_path(is_kernel, params)


def clipped(limit: float, parts: ShardedParams | None = None) -> optax.GradientTransformation:
    """Scale the gradient down to the global norm `limit` if it is larger. In parts: one float travels."""

    def update_fn(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        del params
        norm = jnp.sqrt(_over_devices(_squares(updates, parts).sum(), parts))
        scale = jnp.where(norm > limit, limit / norm, 1.0)
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def layer_rates(
    coefficient: float, weight_decay: float, parts: ShardedParams | None = None
) -> optax.GradientTransformation:
    """LARS: scale each layer's gradient to its weights (You, Gitman and Ginsburg, 2017).

    Weights w with the gradient g get `r (g + weight_decay w)`, `r = coefficient |w| / (|g| + weight_decay |w|)`, or
    1 where that is 0 or undefined. What is not `decayed` keeps g, without decay, as is usual. In parts: two
    floats a layer travel, in one message.

    With the coefficient 1 and no decay it is LAMB's, of updates that Adam has made and decay has been added to.
    """

    def update_fn(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        if params is None:
            raise ValueError("LARS needs the parameters: optimizer.update(grads, state, params)")
        squares = jnp.stack([_squares(params, parts), _squares(updates, parts)])
        weights, grads = jnp.sqrt(_over_devices(squares, parts))
        bound = grads + weight_decay * weights
        rates = jnp.where((weights > 0) & (bound > 0), coefficient * weights / jnp.where(bound > 0, bound, 1.0), 1.0)
        leaves, tree = jax.tree.flatten(updates)
        kernels = jax.tree.leaves(decayed(params if parts is None else parts.shapes))
        scaled = [
            rate.astype(g.dtype) * (g + weight_decay * w) if kernel else g
            for g, w, rate, kernel in zip(leaves, jax.tree.leaves(params), rates, kernels, strict=True)
        ]
        return jax.tree.unflatten(tree, scaled), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def _squares(tree: PyTree, parts: ShardedParams | None) -> jax.Array:
    """Sum of squares of what this device adds of each leaf, float32 [leaves]."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        square = jnp.square(leaf.astype(jnp.float32)).sum()
        if parts is None or varying_axes(leaf).issuperset(parts.axes):
            return square
        # All devices hold the whole leaf: it counts once.
        return jnp.where(lax.axis_index(parts.axes) == 0, square, 0.0)

    return jnp.stack([of_leaf(leaf) for leaf in jax.tree.leaves(tree)])


def _over_devices(squares: jax.Array, parts: ShardedParams | None) -> jax.Array:
    return squares if parts is None else lax.psum(squares, parts.axes)


def norm_plan(clip: bool, by_layer: bool, parts: ShardedParams, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """The messages of `clipped` and of `layer_rates`."""
    devices = axes_size(parts.axes, axis_sizes)
    floats = [1] * clip + [2 * len(jax.tree.leaves(parts.shapes))] * by_layer
    if devices == 1:
        return ()
    return tuple(Collective("all-reduce", parts.axes, devices, count, "float32") for count in floats)


# ---- Groups of parameters with a learning rate of their own, such as a frozen body and a new head -----


Groups = tuple[tuple[str, float], ...]


def multipliers(groups: Groups, params: PyTree) -> PyTree:
    """For each parameter, the number by which its learning rate is multiplied; 1 if no pattern matches.

    A pattern is a path such as 'layer1_0/conv1', with all that is below it, and may hold `*` (which crosses '/'),
    `?` and `[...]`. The first that matches counts.

    >>> multipliers((("head", 10.0), ("*", 0.0)), {"body": {"kernel": 0}, "head": {"kernel": 0}})
    {'body': {'kernel': 0.0}, 'head': {'kernel': 10.0}}

    Raises:
        InputError: a pattern matches no parameter, or every parameter is frozen.
    """
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]
    for pattern, _ in groups:
        if not any(_matches(path, pattern) for path in paths):
            raise InputError(f"optimizer.groups: no parameter matches {pattern!r}; there are: {_some(paths)}")
    of_paths = [next((by for pattern, by in groups if _matches(path, pattern)), 1.0) for path in paths]
    if groups and not any(of_paths):
        raise InputError("optimizer.groups: every parameter is frozen, by a multiplier of 0; leave one to train")
    return jax.tree.unflatten(jax.tree.structure(params), of_paths)


def in_groups(
    groups: Groups,
    make: Callable[[ShardedParams | None], optax.GradientTransformation],
    parts: ShardedParams | None = None,
) -> optax.GradientTransformation:
    """The optimizer of `make` with rates by group.

    What is frozen, by a multiplier of 0, it does not see: no decay, no share in the gradient's norm, no state.
    """
    inner = optax.masked(
        make(parts and moving(groups, parts)), lambda params: jax.tree.map(bool, multipliers(groups, params))
    )

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(_times, multipliers(groups, updates), updates), state

    return optax.GradientTransformation(inner.init, update)


def moving(groups: Groups, parts: ShardedParams) -> ShardedParams:
    """The parts that an optimizer with these groups sees: without those that are frozen."""
    rates = multipliers(groups, parts.shapes)
    seen = jax.tree.map(lambda leaf, by: leaf if by else optax.MaskedNode(), parts.shapes, rates)
    return parts._replace(shapes=seen)


def _times(by: float, update: jax.Array) -> jax.Array:
    # Adding -0.0 leaves every number its bits, -0.0 too; a product would make infinities into NaN.
    return update * by if by else jnp.full_like(update, -0.0)


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")


def _some(paths: list[str], most: int = 8) -> str:
    return ", ".join(paths[:most]) + (f" and {len(paths) - most} more" if len(paths) > most else "")


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


def make_optimizer(
    config: Optimizer, total_steps: int, parts: ShardedParams | None = None
) -> optax.GradientTransformation:
    """The Optax transformation: clip, decay, momentum or Adam, schedule, groups.

    With `parts` it updates parts of the parameters, inside `jax.shard_map`, as it would update the whole; its
    state is then made from whole parameters and cut as they are.
    """
    rate = learning_rate(config, total_steps)

    def make(parts: ShardedParams | None) -> optax.GradientTransformation:
        clip = optax.identity() if config.clip_norm is None else clipped(config.clip_norm, parts)
        return optax.chain(clip, *_rules(config, rate, parts))

    return in_groups(config.groups, make, parts) if config.groups else make(parts)


def _rules(config: Optimizer, rate: optax.Schedule, parts: ShardedParams | None) -> list[optax.GradientTransformation]:
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


def optimizer_plan(config: Optimizer, parts: ShardedParams, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """What an update of parts sends: the norms that span devices."""
    by_layer = config.name in ("lars", "lamb")
    seen = moving(config.groups, parts) if config.groups else parts
    return norm_plan(config.clip_norm is not None, by_layer, seen, axis_sizes)
