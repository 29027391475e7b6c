"""Refuses a config that cannot run, naming the key, what was got and what was wanted."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import Mesh

from jaxnet.comm import HOST, STRATEGIES, Strategy, mesh_size, named_strategy, takes_all_reduce
from jaxnet.data import Source
from jaxnet.errors import InputError
from jaxnet.models import Model, Variables
from jaxnet.training.config import Config
from jaxnet.training.settings.ensemble import check_ensemble
from jaxnet.training.settings.limits import check_limits
from jaxnet.training.settings.recipe import check_recipe
from jaxnet.training.steps.hybrid import check_hybrid
from jaxnet.training.steps.loss_scale import check_scale
from jaxnet.training.steps.pieces_step import message_reducer
from jaxnet.training.steps.step import Mode

_MOST_STEPS = 2**31  # the step is an int32


class _Rule(NamedTuple):
    """What the values of some keys must be; a value of None is always allowed."""

    keys: tuple[str, ...]
    wanted: str
    holds: Callable[[Any], bool]


_RULES = (
    _Rule(
        ("epochs", "eval_every_epochs", "optimizer.learning_rate", "optimizer.trust_coefficient"),
        "a number above 0",
        lambda value: value > 0,
    ),
    _Rule(("optimizer.factor", "optimizer.power"), "a number above 0", lambda value: value > 0),
    _Rule(("optimizer.reference_batch", "pixels.size"), "at least 1, or none", lambda value: value >= 1),
    _Rule(("optimizer.warmup_epochs", "mixing.mixup", "mixing.cutmix"), "at least 0", lambda value: value >= 0),
    _Rule(
        (
            *("augmentation.brightness", "augmentation.contrast", "augmentation.saturation"),
            *("mixing.probability", "mixing.cutmix_share", "optimizer.warmup_from"),
        ),
        "0 to 1",
        lambda value: 0 <= value <= 1,
    ),
    _Rule(("optimizer.clip_norm",), "a number above 0, or none", lambda value: value > 0),
    _Rule(("batch_size", "eval_batch_size", "microbatches"), "at least 1", lambda value: value >= 1),
    _Rule(
        ("log.every_steps", "checkpoints.every_steps", "checkpoints.keep"),
        "at least 1",
        lambda value: value >= 1,
    ),
    _Rule(("ensemble.members",), "at least 1", lambda value: value >= 1),
    _Rule(("guard.rollback_after",), "at least 1", lambda value: value >= 1),
    _Rule(("guard.check_replicas_every",), "at least 1, or none", lambda value: value >= 1),
    _Rule(("watchdog.factor",), "above 1, or none", lambda value: value > 1),
    _Rule(("watchdog.floor_seconds", "watchdog.other_seconds"), "at least 1", lambda value: value >= 1),
    _Rule(("guard.max_rollbacks",), "at least 0", lambda value: value >= 0),
    _Rule(("optimizer.warmup_steps", "optimizer.weight_decay"), "at least 0", lambda value: value >= 0),
    _Rule(
        ("augmentation.shift", "augmentation.erase", "profile.start", "profile.steps"),
        "at least 0",
        lambda value: value >= 0,
    ),
    _Rule(("label_smoothing", "optimizer.momentum"), "at least 0 and below 1", lambda value: 0 <= value < 1),
    _Rule(("average_decay",), "at least 0 and below 1, or none", lambda value: 0 <= value < 1),
    # Who means megabytes would otherwise get a message for every few parameters, and wait for ever.
    _Rule(("bucket_bytes",), "at least 1024 (these are bytes), or none", lambda value: value >= 1024),
    # JAX takes the lower 32 bits of a larger seed without a word.
    _Rule(("seed",), f"0 to {2**32 - 1}", lambda value: 0 <= value < 2**32),
    _Rule(("pixels.mean", "pixels.std"), "one number or one a channel", lambda values: len(values) > 0),
    _Rule(("pixels.std",), "numbers above 0", lambda values: min(values) > 0),
    _Rule(("pixels.mean",), "numbers of 0 to 1, as pixels are", lambda values: 0 <= min(values) <= max(values) <= 1),
)


def check_config(config: Config) -> None:
    """Refuse what cannot run on any mesh, with any data."""
    check_limits(config)
    for rule in _RULES:
        for key in rule.keys:
            value = operator.attrgetter(key)(config)
            if value is not None and not rule.holds(value):
                raise InputError(f"{key}={value}: wanted {rule.wanted}")
    if not isinstance(config.model, nn.Module | Model):
        raise InputError(
            f"model is {_kind(config.model)}: wanted a Flax Linen module, or a Model such as "
            "jaxnet.models.from_nnx makes"
        )
    if isinstance(config.data, type) or not callable(getattr(config.data, "load", None)):
        raise InputError(f"data is {_kind(config.data)}: wanted a data set of jaxnet.data, such as Digits()")
    if axes := getattr(config.model, "norm_axes", ()):
        raise InputError(f"model.norm_axes={axes}: set batch_norm=local, host or global instead")
    check_recipe(config)
    strategy, mode = strategy_of(config)
    check_ensemble(config, strategy, mode)
    check_hybrid(config, strategy, mode)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def strategy_of(config: Config) -> tuple[Strategy, Mode]:
    """The strategy and the mode of the step that a config asks for; InputError if they do not go together."""
    try:
        strategy = named_strategy(config.strategy, config.bucket_bytes)
        if config.transport == "mpi":
            _check_mpi(config)
    except ValueError as error:
        raise InputError(str(error)) from error
    ours: Mode = "jit" if strategy.reducer is None else "shard_map"
    mode: Mode = ours if config.mode == "auto" else config.mode
    if (mode == "jit") != (ours == "jit"):
        raise InputError(
            f"mode={config.mode} does not go with strategy={config.strategy}: mode=jit goes with strategy=xla "
            "alone, where XLA reduces the gradients; leave mode=auto"
        )
    if mode == "pmap" and strategy.schedule == "deferred":
        raise InputError(
            f"mode=pmap does not go with strategy={config.strategy}, which carries the state in parts; use "
            "mode=shard_map, which does the same on any mesh"
        )
    if mode in ("pmap", "pieces") and strategy.schedule == "local":
        raise InputError(
            f"mode={mode} does not go with strategy={config.strategy}, which gives each device parameters of its own; "
            "use mode=shard_map"
        )
    if mode == "pieces":
        _check_pieces(config, strategy)
    check_scale(config.model, config.guard.skip, config.strategy, strategy.schedule)
    if ours == "jit" and config.batch_norm == "host":
        raise InputError("batch_norm=host does not go with strategy=xla, which normalizes by the global batch")
    return strategy, mode


def _check_pieces(config: Config, strategy: Strategy) -> None:
    """What computes in mode 'pieces' is a program of one device: refuse what sums elsewhere than in messages."""
    try:
        message_reducer(strategy)
    except ValueError:
        raise InputError(
            f"mode=pieces does not go with strategy={config.strategy}, which does not sum message by message; "
            "use mode=shard_map"
        ) from None
    if config.batch_norm != "local":
        raise InputError(
            f"batch_norm={config.batch_norm} does not go with mode=pieces, where a device knows its own batch alone; "
            "set batch_norm=local or mode=shard_map"
        )


def _check_mpi(config: Config) -> None:
    """With MPI the mesh has the devices of one rank alone: refuse what sums over the mesh by itself."""
    if not takes_all_reduce(config.strategy):
        able = ", ".join(filter(takes_all_reduce, STRATEGIES))
        raise InputError(
            f"strategy={config.strategy} does not go with transport=mpi, which carries an all-reduce across hosts and "
            f"nothing else; these strategies have one: {able}"
        )
    if config.mode not in ("auto", "shard_map"):
        raise InputError(
            f"mode={config.mode} does not go with transport=mpi, which takes mode=shard_map; leave mode=auto"
        )
    if config.batch_norm == "global":
        raise InputError(
            "batch_norm=global does not go with transport=mpi: the statistics would be those of one rank; set "
            "batch_norm=host, which is the batch of a rank, or local"
        )
    if config.hosts not in (None, 1):
        raise InputError(
            f"hosts={config.hosts} does not go with transport=mpi, where each rank is a host; leave it out"
        )


def check_fit(config: Config, mesh: Mesh, source: Source, ranks: int = 1) -> None:
    """Refuse what cannot run on this mesh, or on as many as there are ranks of MPI, with this data."""
    devices = mesh_size(mesh) * ranks
    parts = "" if config.microbatches == 1 else f" and {config.microbatches} microbatches"
    pairs, mixed = (2, ", each with an even number of examples to mix") if config.mixing.on else (1, "")
    share = devices * config.microbatches * pairs
    _check_multiple("batch_size", config.batch_size, share, f"{devices} devices{parts}{mixed}")
    _check_multiple("eval_batch_size", config.eval_batch_size, devices, f"{devices} devices")
    if config.mode == "pmap" and (mesh.shape[HOST] > 1 or jax.process_count() > 1):
        raise InputError(
            f"mode=pmap runs in one process, on a mesh of one host, but hosts={mesh.shape[HOST]}; "
            "use mode=shard_map, which does the same on any mesh"
        )
    if config.mode == "pieces" and len(mesh.local_devices) != 1:
        raise InputError(
            f"mode=pieces takes one device a process, and this one has {len(mesh.local_devices)}; start a process for "
            "each device, or use mode=shard_map"
        )
    steps = config.epochs * source.num_examples / config.batch_size
    if steps >= _MOST_STEPS:
        raise InputError(f"epochs={config.epochs}: makes {steps:.3g} steps; wanted below {_MOST_STEPS}")
    warmup = config.optimizer.warmup_epochs * source.num_examples / config.batch_size
    if warmup >= _MOST_STEPS / 2:
        raise InputError(
            f"optimizer.warmup_epochs={config.optimizer.warmup_epochs}: makes {warmup:.3g} steps; "
            f"wanted below {_MOST_STEPS // 2}"
        )
    channels = source.image_shape[-1]
    for key, values in (("pixels.mean", config.pixels.mean), ("pixels.std", config.pixels.std)):
        if len(values) not in (1, channels):
            raise InputError(
                f"{key}={values}: wanted one number, or one for each of the {channels} channels of the images"
            )


def _check_multiple(key: str, value: int, share: int, whom: str) -> None:
    if value % share:
        nearest = max(1, round(value / share)) * share
        raise InputError(f"{key}={value}: wanted a multiple of {share}, for {whom}; nearest: {nearest}")


def check_model(config: Config, model: Model, variables: Variables, source: Source) -> None:
    """Refuse a model (`variables`: their shapes) that would train in silence on something else than asked for."""
    logits = _logits(model, variables, config.pixels.shape(source.image_shape))
    if len(logits.shape) != 2 or logits.shape[1] < source.num_classes:
        width = (
            "set model.num_classes=" if hasattr(config.model, "num_classes") else "make the width of its last layer "
        )
        raise InputError(
            f"the model's logits for one image have the shape {logits.shape}, but the data set has "
            f"{source.num_classes} classes; {width}{source.num_classes}"
        )
    shared = config.batch_norm != "local" and strategy_of(config)[1] != "jit"
    if shared and jax.tree.leaves(variables.stats) and not hasattr(config.model, "norm_axes"):
        raise InputError(
            f"batch_norm={config.batch_norm}: the model has no field norm_axes that would tell its BatchNorm; give "
            "it one, as jaxnet.models.CNN has, or set batch_norm=local"
        )


def check_test_images(config: Config, model: Model, variables: Variables, source: Source, tests: Source) -> None:
    """Refuse test images that a network with variables of these shapes, those of training images, cannot take."""
    trained, tested = (config.pixels.shape(split.image_shape) for split in (source, tests))
    if tested == trained:
        return
    try:
        _logits(model, variables, tested)
    except Exception as error:  # whatever the network has against the images
        sizes = [getattr(config.data, key, None) for key in ("size", "test_size")]
        keys, cure = f"data.size={sizes[0]} and data.test_size={sizes[1]}: ", "set both to one size"
        if None in sizes:
            keys, cure = "", "give them one shape, as pixels.size=N does"
        shapes = ["x".join(map(str, shape)) for shape in (trained, tested)]
        raise InputError(
            f"{keys}the network learns from images of {shapes[0]} and does not take test images of {shapes[1]}; "
            f"{cure}, or take a network that averages over all places before its dense layers, such as ResNet"
        ) from error


def _logits(model: Model, variables: Variables, image_shape: tuple[int, ...]) -> Any:
    """The shape of what an evaluation gives for one image; nothing is computed."""
    image = jax.ShapeDtypeStruct((1, *image_shape), "float32")
    evaluate = lambda params, stats, x: model.apply(params, stats, x, train=False, keys=None)[0]  # noqa: E731
    return jax.eval_shape(evaluate, *variables, image)
