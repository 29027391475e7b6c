"""Optimizer and learning-rate schedule, from a few plain numbers, or an Optax transformation of one's own.

    sgd        clip -> decay -> momentum -> rate
    rmsprop    clip -> decay -> RMS scaling -> rate -> momentum
    adamw      clip -> Adam -> decay -> rate
    lars       clip -> decay and rate of each layer -> rate -> momentum
    lamb       clip -> Adam -> decay -> rate of each layer -> rate

An update may see only this device's part of every parameter (`ShardedParams`). Then norms need the squares of all
devices: one message each for clipping and for the layer rates, which `optimizer_plan` predicts.
"""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnet.comm import AxisSizes, Collective, axes_size, varying_axes
from jaxnet.errors import InputError, users_code
from jaxnet.limits import BelowOne, Count, Fraction, NotNegative, Positive, Whole
from jaxnet.models import leaf_name

PyTree = Any


class ShardedParams(NamedTuple):
    """Parameters of which an optimizer sees only this device's part; it may see some leaves whole.

    Attributes:
        shapes: the shapes of the whole parameters.
        axes: the mesh axes over which the parts are spread, bound where the optimizer runs.
    """

    shapes: PyTree
    axes: tuple[str, ...]


# ---- The optimizer of a config --------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimizer:
    """A standard optimizer with a standard schedule.

    Attributes:
        name: 'sgd' (with momentum), 'adamw', 'rmsprop' (as Inception was trained: decay 0.9, epsilon 1), or for large
            batches 'lars' and 'lamb' (SGD and Adam with rates scaled by layer; You et al., 2017 and 2020).
        learning_rate: the rate at the peak of the schedule.
        reference_batch: the batch size for which the rate is given; the rate is multiplied by
            batch_size / reference_batch (linear scaling; Goyal et al., 2017). None: the run's own batch size.
        schedule: after warm-up: 'cosine' to zero at the last step, 'linear' to zero, 'polynomial' to zero, 'step'
            (see `milestones`), or 'constant'.
        milestones: for 'step': fractions of the run, such as 1/3 and 2/3, after which the rate is multiplied by
            `factor`.
        factor: see `milestones`.
        power: for 'polynomial': the rate falls as `(1 - t)^power`, t from 0 to 1.
        warmup_steps: steps over which the rate first rises linearly to the peak.
        warmup_epochs: the same in epochs; set one of the two.
        warmup_from: the rate at the start of warm-up, as a fraction of the peak.
        momentum: momentum of SGD, LARS and RMSProp; b1 of AdamW and LAMB.
        nesterov: Nesterov's momentum, which makes AdamW NAdamW (Dozat, 2016); not for LAMB.
        weight_decay: added to the gradient by SGD, RMSProp and LARS, to the update by AdamW and LAMB; see `decayed`.
        clip_norm: scale the gradient down to this global norm; None: do not.
        trust_coefficient: for LARS: how far a step may move a layer, as a fraction of its norm.
        groups: (pattern, multiplier) of the learning rate of parameters whose path matches, such as ('head', 10) or
            ('layer1*', 0). The first match counts, and 0 freezes. On the command line: head:10,layer1*:0.
    """

    name: Literal["sgd", "adamw", "rmsprop", "lars", "lamb"] = "sgd"
    learning_rate: Positive = 0.1
    schedule: Literal["cosine", "linear", "polynomial", "step", "constant"] = "cosine"
    warmup_steps: Whole = 0
    momentum: BelowOne = 0.9
    nesterov: bool = False
    weight_decay: NotNegative = 0.0
    clip_norm: Positive | None = None
    trust_coefficient: Positive = 0.001
    reference_batch: Count | None = None
    milestones: tuple[float, ...] = ()
    factor: Positive = 0.1
    power: Positive = 2.0
    warmup_epochs: NotNegative = 0.0
    warmup_from: Fraction = 0.0
    groups: tuple[tuple[str, float], ...] = ()

    def for_run(self, batch_size: int, steps_per_epoch: float) -> Self:
        """Return the same optimizer with the rate for this batch size, and warm-up in steps.

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


AnyOptimizer: TypeAlias = Optimizer | optax.GradientTransformation | Callable[[int], optax.GradientTransformation]
"""What a config may hold: plain numbers, an Optax transformation, or a function of the total steps that makes one."""


def optimizer_text(config: AnyOptimizer) -> str:
    """Return what a person is told of an optimizer.

    >>> optimizer_text(Optimizer()), optimizer_text(optax.adam(1e-3))
    ('sgd, learning rate 0.1, cosine', 'an Optax transformation of its own')
    """
    if isinstance(config, Optimizer):
        return f"{config.name}, learning rate {config.learning_rate:g}, {config.schedule}"
    name = "" if isinstance(config, optax.GradientTransformation) else getattr(config, "__name__", "")
    return f"an Optax transformation of its own{f', {name}' if name.isidentifier() else ''}"


def learning_rate(config: AnyOptimizer, total_steps: int) -> optax.Schedule | None:
    """Return the learning rate as a function of the step, 0 to `total_steps`, for the result of `Optimizer.for_run`.

    None for one's own optimizer, which alone knows it.
    """
    if not isinstance(config, Optimizer):
        return None
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
            # Milestones are fractions of the whole run, but this schedule starts counting after warm-up.
            ends = [round(part * total_steps) - warmup for part in config.milestones]
            main = lambda step: peak * config.factor ** sum(step >= end for end in ends)  # noqa: E731
        case "constant":
            main = optax.constant_schedule(peak)
    if not warmup:
        return main
    rising = optax.linear_schedule(peak * config.warmup_from, peak, warmup)
    return optax.join_schedules([rising, main], [warmup])


def make_optimizer(
    config: AnyOptimizer, total_steps: int, parts: ShardedParams | None = None
) -> optax.GradientTransformation:
    """Return the Optax transformation: clip, decay, momentum or Adam, schedule, groups; or one's own.

    With `parts` it updates parts of the parameters, inside `jax.shard_map`, with the result of updating the whole. Its
    state is then made from whole parameters and cut as they are. One's own does so if it treats each element by itself.

    Raises:
        InputError: one's own function of the total steps gives no transformation.
    """
    if not isinstance(config, Optimizer):
        return _own(config, total_steps)
    rate = learning_rate(config, total_steps)
    assert rate is not None

    def make(parts: ShardedParams | None) -> optax.GradientTransformation:
        clip = optax.identity() if config.clip_norm is None else clipped(config.clip_norm, parts)
        return optax.chain(clip, *_rules(config, rate, parts))

    return in_groups(config.groups, make, parts) if config.groups else make(parts)


def _own(
    config: optax.GradientTransformation | Callable[[int], optax.GradientTransformation], total_steps: int
) -> optax.GradientTransformation:
    with users_code(f"optimizer: the function of the total steps, called with {total_steps},"):
        made = config if isinstance(config, optax.GradientTransformation) else config(total_steps)
    if not isinstance(made, optax.GradientTransformation):
        raise InputError(
            f"optimizer: it gave {type(made).__name__} for {total_steps} steps; wanted an Optax transformation, such "
            "as optax.adamw(1e-3)"
        )
    return type(made)(_guarded("init", made.init), _guarded("update", made.update))


def _guarded(name: str, function: Callable[..., Any]) -> Any:
    """A function of a transformation of one's own, whose failures are InputErrors."""

    def guarded(*given: Any, **named: Any) -> Any:
        with users_code(f"optimizer: {name} of the Optax transformation"):
            return function(*given, **named)

    return guarded


def check_update(optimizer: optax.GradientTransformation, params: PyTree) -> None:
    """Refuse a transformation of one's own that does not update parameters of these shapes; nothing is computed."""
    with users_code("optimizer: what it keeps"):  # such as text, which is no array
        state = jax.eval_shape(optimizer.init, params)
        made = jax.eval_shape(optimizer.update, params, state, params)
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError(f"optimizer: update gave a {type(made).__name__}: wanted (updates, state)")
    for what, before, after in (("updates", params, made[0]), ("state", state, made[1])):
        old, new = jax.tree.structure(before), jax.tree.structure(after)
        if str(old) != str(new):
            raise InputError(f"optimizer: update gave {what} of the form {new!s:.80}: wanted {old!s:.80}")
        for path, leaf in jax.tree.leaves_with_path(before):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
                raise InputError(
                    f"optimizer: its state holds {leaf.dtype} in {leaf_name(path)}: wanted arrays of numbers; of a "
                    "random key keep jax.random.key_data"
                )
        for (path, one), other in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
            if one.shape != other.shape or (what == "state" and one.dtype != other.dtype):
                name = leaf_name(path)
                raise InputError(
                    f"optimizer: update gave {other.dtype}{list(other.shape)} among the {what} for {name}: wanted "
                    f"{one.dtype}{list(one.shape)}"
                )


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
            # The rate comes before the momentum, as in the paper, so a change of rate does not affect past gradients.
            scaled = layer_rates(config.trust_coefficient, config.weight_decay, parts)
            return [scaled, optax.scale_by_learning_rate(rate), optax.trace(momentum, nesterov)]
        case "lamb":
            adam = optax.scale_by_adam(b1=momentum, eps=1e-6)
            return [adam, decay, layer_rates(1.0, 0.0, parts), optax.scale_by_learning_rate(rate)]


def optimizer_plan(config: AnyOptimizer, parts: ShardedParams, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """Return the messages of an update of parts: the norms that span devices; one's own has none."""
    if not isinstance(config, Optimizer):
        return ()
    by_layer = config.name in ("lars", "lamb")
    seen = trainable_parts(config.groups, parts) if config.groups else parts
    return norm_plan(config.clip_norm is not None, by_layer, seen, axis_sizes)


# ---- Groups with a rate of their own --------------------------------------------------------------------
#
# Such as a frozen body and a new head.

Groups = tuple[tuple[str, float], ...]


def multipliers(groups: Groups, params: PyTree) -> PyTree:
    """Return for each parameter the multiplier of its learning rate; 1 if no pattern matches.

    A pattern is a path such as 'layer1_0/conv1', includes everything below it, and may contain `*` (which crosses '/'),
    `?` and `[...]`. The first pattern that matches counts.

    >>> multipliers((("head", 10.0), ("*", 0.0)), {"body": {"kernel": 0}, "head": {"kernel": 0}})
    {'body': {'kernel': 0.0}, 'head': {'kernel': 10.0}}

    Raises:
        InputError: a pattern matches no parameter, or every parameter is frozen.
    """
    paths = [leaf_name(path) for path, _ in jax.tree.leaves_with_path(params)]
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
    """Return the optimizer of `make` with rates by group.

    It does not see frozen parameters (multiplier 0): they have no decay, no share in the gradient's norm, no state.
    """
    inner = optax.masked(
        make(parts and trainable_parts(groups, parts)), lambda params: jax.tree.map(bool, multipliers(groups, params))
    )

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(_times, multipliers(groups, updates), updates), state

    return optax.GradientTransformation(inner.init, update)


def trainable_parts(groups: Groups, parts: ShardedParams) -> ShardedParams:
    """Return the parts that an optimizer with these groups sees: those that are not frozen."""
    rates = multipliers(groups, parts.shapes)
    seen = jax.tree.map(lambda leaf, by: leaf if by else optax.MaskedNode(), parts.shapes, rates)
    return parts._replace(shapes=seen)


def _times(by: float, update: jax.Array) -> jax.Array:
    # A frozen update is -0.0, because adding it keeps the bits of every number, including -0.0. Multiplying by 0 would
    # turn infinities into NaN.
    return update * by if by else jnp.full_like(update, -0.0)


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")


def _some(paths: list[str], most: int = 8) -> str:
    return ", ".join(paths[:most]) + (f" and {len(paths) - most} more" if len(paths) > most else "")


# ---- Kernels and their norms, whole or in shards -------------------------------------------------------

_NO_KERNELS = ("bias", "scale", "cls_token", "pos_embed")


def decayed(params: PyTree) -> PyTree:
    """Return which leaves weight decay and layer rates act on: kernels.

    Excluded are BatchNorm's scale and bias, other biases of any shape, and a ViT's class token and positions.

    >>> import jax.numpy as jnp
    >>> decayed({"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3), "query": {"bias": jnp.zeros((2, 3))}})
    {'bias': False, 'kernel': True, 'query': {'bias': False}}
    """

    def is_kernel(path: tuple[Any, ...], leaf: Any) -> bool:
        return leaf.ndim > 1 and jax.tree_util.keystr(path[-1:], simple=True) not in _NO_KERNELS

    return jax.tree.map_with_path(is_kernel, params)


def clipped(limit: float, parts: ShardedParams | None = None) -> optax.GradientTransformation:
    """Scale the gradient down to the global norm `limit` if it is larger. With `parts` it sends one float."""

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
    1 where that is 0 or undefined. Leaves that are not `decayed` keep g, without decay, as is usual. With `parts` it
    sends two floats per layer, in one message.

    With coefficient 1 and no decay it is the layer rate of LAMB, applied to Adam's updates with decay added.
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
    """Return the sum of squares that this device contributes to each leaf, float32 [leaves]."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        square = jnp.square(leaf.astype(jnp.float32)).sum()
        if parts is None or varying_axes(leaf).issuperset(parts.axes):
            return square
        # Every device holds the whole leaf: count it on one device only.
        return jnp.where(lax.axis_index(parts.axes) == 0, square, 0.0)

    return jnp.stack([of_leaf(leaf) for leaf in jax.tree.leaves(tree)])


def _over_devices(squares: jax.Array, parts: ShardedParams | None) -> jax.Array:
    return squares if parts is None else lax.psum(squares, parts.axes)


def norm_plan(clip: bool, by_layer: bool, parts: ShardedParams, axis_sizes: AxisSizes) -> tuple[Collective, ...]:
    """Return the messages of `clipped` and of `layer_rates`."""
    devices = axes_size(parts.axes, axis_sizes)
    floats = [1] * clip + [2 * len(jax.tree.leaves(parts.shapes))] * by_layer
    if devices == 1:
        return ()
    return tuple(Collective("all-reduce", parts.axes, devices, count, "float32") for count in floats)
