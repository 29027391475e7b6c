"""From a Config to everything that training needs, as shapes and functions; no array is made here."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import AXES, DEVICE, Collective, Reducer, Strategy, backward_order, mesh_size, named_strategy
from jaxnet.data import Source
from jaxnet.errors import InputError
from jaxnet.models import Model, from_linen
from jaxnet.training.config import Config
from jaxnet.training.loss import LossFn, classification_loss
from jaxnet.training.optimizer import make_optimizer
from jaxnet.training.state import TrainState, make_state
from jaxnet.training.step import Mode, StepOptions, make_train_step, planned_collectives, scheduled

PyTree = Any

_METRICS = 2  # loss and accuracy


@dataclass(frozen=True)
class Experiment:
    """A run before it has any arrays.

    Attributes:
        model: as it is evaluated.
        optimizer: the Optax transformation.
        strategy: how gradients travel.
        reducer: the strategy's, scheduled and in backward order; None if XLA reduces.
        order: leaves in the order in which backward produces them.
        mode: of the step.
        step: the training step, not yet compiled.
        total_steps: of the whole run.
        steps_per_epoch: batches in one pass, a fraction where they do not divide.
        state_shapes: of the train state, without shardings.
        batch_shapes: of a global batch.
        planned: collectives of one step; empty if XLA reduces.
        first_state: makes the state before the first step.
    """

    model: Model
    optimizer: optax.GradientTransformation
    strategy: Strategy
    reducer: Reducer | None
    order: tuple[int, ...]
    mode: Mode
    step: jax.stages.Wrapped
    total_steps: int
    steps_per_epoch: float
    state_shapes: TrainState
    batch_shapes: dict[str, jax.ShapeDtypeStruct]
    planned: tuple[Collective, ...]
    first_state: Callable[[], TrainState]


def prepare(config: Config, mesh: Mesh, source: Source) -> Experiment:
    """Everything but arrays, or an InputError that names the key to change."""
    check(config, mesh, source)
    strategy, mode = _strategy(config)
    if mode == "pmap" and jax.process_count() > 1:
        raise InputError("mode=pmap runs in one process; use mode=shard_map, which does the same on any number")
    steps_per_epoch = source.num_examples / config.batch_size
    total_steps = max(1, round(config.epochs * steps_per_epoch))
    optimizer = make_optimizer(config.optimizer, total_steps)
    model = as_model(config.model)
    batch_shapes = _batch_shapes(config.batch_size, source.image_shape)
    order = _order(_loss(config, model), model, batch_shapes)
    reducer = scheduled(strategy, order)
    first_state = functools.partial(
        make_state,
        *(model, optimizer, reducer, mesh, source.image_shape, config.seed),
        averaged=config.average_decay is not None,
    )
    state_shapes = jax.eval_shape(first_state)
    options = StepOptions(mode, config.microbatches, config.average_decay, order)
    train_model = as_model(config.model, () if mode == "jit" else norm_axes(config))
    step = make_train_step(_loss(config, train_model), optimizer, strategy, mesh, options)
    merged = None if config.batch_norm == "global" else state_shapes.stats
    planned = () if reducer is None else planned_collectives(reducer, state_shapes.params, merged, _METRICS, mesh)
    return Experiment(
        model=model,
        optimizer=optimizer,
        strategy=strategy,
        reducer=reducer,
        order=order,
        mode=mode,
        step=step,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        state_shapes=state_shapes,
        batch_shapes=batch_shapes,
        planned=planned,
        first_state=first_state,
    )


def as_model(model: Any, axes: tuple[str, ...] = ()) -> Model:
    """The config's model; a Linen module with a field `norm_axes` gets the axes that share its BatchNorm."""
    if isinstance(model, Model):
        return model
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the config's model is a {type(model).__name__}; wanted a Flax Linen module, or a Model such as "
            "jaxnet.models.from_nnx makes"
        )
    if axes and "norm_axes" in {field.name for field in dataclasses.fields(model)}:
        model = model.clone(norm_axes=axes)
    return from_linen(model)


def norm_axes(config: Config) -> tuple[str, ...]:
    """Mesh axes that share BatchNorm's statistics."""
    return {"local": (), "host": (DEVICE,), "global": AXES}[config.batch_norm]


def _strategy(config: Config) -> tuple[Strategy, Mode]:
    try:
        strategy = named_strategy(config.strategy, config.bucket_bytes)
    except ValueError as error:
        raise InputError(str(error)) from error
    ours: Mode = "jit" if strategy.reducer is None else "shard_map"
    mode: Mode = ours if config.mode == "auto" else config.mode
    if (mode == "jit") != (ours == "jit"):
        raise InputError(
            f"mode={config.mode} does not go with strategy={config.strategy}: mode=jit goes with strategy=xla "
            "alone, where XLA reduces the gradients; leave mode=auto"
        )
    return strategy, mode


def _loss(config: Config, model: Model) -> LossFn:
    return classification_loss(
        model, config.pixels, label_smoothing=config.label_smoothing, augment=config.augmentation
    )


def _batch_shapes(size: int, image_shape: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "image": jax.ShapeDtypeStruct((size, *image_shape), "uint8"),
        "label": jax.ShapeDtypeStruct((size,), "int32"),
        "id": jax.ShapeDtypeStruct((size,), "int32"),
    }


def _order(loss_fn: LossFn, model: Model, batch: dict[str, jax.ShapeDtypeStruct]) -> tuple[int, ...]:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch["id"].shape[0]))
    image = jax.ShapeDtypeStruct((1, *batch["image"].shape[1:]), "float32")
    params, stats = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), image)
    gradient = jax.grad(loss_fn, has_aux=True)
    return backward_order(lambda *args: gradient(*args)[0], params, stats, batch, keys)


def check(config: Config, mesh: Mesh, source: Source) -> None:
    """Refuse what cannot run, naming the key, what was got and what was wanted."""
    devices = mesh_size(mesh)
    share = devices * config.microbatches
    _require(config.epochs > 0, f"epochs={config.epochs}: wanted a number above 0")
    _require(config.microbatches >= 1, f"microbatches={config.microbatches}: wanted at least 1")
    _require(
        config.batch_size >= 1 and config.batch_size % max(share, 1) == 0,
        f"batch_size={config.batch_size}: wanted a multiple of {share}, for {devices} devices"
        + (f" and {config.microbatches} microbatches" if config.microbatches > 1 else "")
        + f"; nearest: {max(share, round(config.batch_size / share) * share)}",
    )
    _require(
        config.eval_batch_size >= 1 and config.eval_batch_size % devices == 0,
        f"eval_batch_size={config.eval_batch_size}: wanted a multiple of {devices}, the number of devices",
    )
    _require(config.eval_every_epochs > 0, f"eval_every_epochs={config.eval_every_epochs}: wanted above 0")
    for key, value in (
        ("log.every_steps", config.log.every_steps),
        ("checkpoints.every_steps", config.checkpoints.every_steps),
        ("checkpoints.keep", config.checkpoints.keep),
    ):
        _require(value >= 1, f"{key}={value}: wanted at least 1")
    _check_fractions(config)
    _check_model(config, source)


def _check_fractions(config: Config) -> None:
    fractions = {
        "label_smoothing": config.label_smoothing,
        "average_decay": config.average_decay or 0.0,
        "optimizer.momentum": config.optimizer.momentum,
    }
    for key, value in fractions.items():
        _require(0 <= value < 1, f"{key}={value}: wanted at least 0 and below 1")
    _require(
        config.optimizer.learning_rate > 0,
        f"optimizer.learning_rate={config.optimizer.learning_rate}: wanted above 0",
    )
    _require(
        config.optimizer.clip_norm is None or config.optimizer.clip_norm > 0,
        f"optimizer.clip_norm={config.optimizer.clip_norm}: wanted above 0, or none",
    )
    _require(
        config.optimizer.warmup_steps >= 0,
        f"optimizer.warmup_steps={config.optimizer.warmup_steps}: wanted at least 0",
    )
    _require(config.seed >= 0, f"seed={config.seed}: wanted at least 0")
    _require(
        config.bucket_bytes is None or config.bucket_bytes >= 1,
        f"bucket_bytes={config.bucket_bytes}: wanted at least 1, or none",
    )


def _check_model(config: Config, source: Source) -> None:
    classes = getattr(config.model, "num_classes", source.num_classes)
    _require(
        classes >= source.num_classes,
        f"model.num_classes={classes}: the data set has {source.num_classes} classes",
    )
    channels = source.image_shape[-1]
    for key, values in (("pixels.mean", config.pixels.mean), ("pixels.std", config.pixels.std)):
        _require(
            len(values) in (1, channels),
            f"{key}={values}: wanted 1 number or {channels}, one a channel of the images",
        )
    _require(all(s > 0 for s in config.pixels.std), f"pixels.std={config.pixels.std}: wanted above 0")
    dtype = getattr(config.model, "dtype", "float32")
    _require(dtype in ("float32", "bfloat16"), f"model.dtype={dtype}: wanted float32 or bfloat16")
    _require(
        not (config.strategy == "xla" and config.batch_norm == "host"),
        "batch_norm=host does not go with strategy=xla, which always normalizes by the global batch",
    )


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise InputError(message)
