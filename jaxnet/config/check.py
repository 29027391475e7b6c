"""Refuses a config that cannot run on any mesh with any data, naming the key, what was got and what was wanted."""

import itertools
import types
from collections.abc import Iterator
from typing import Any, Literal

import flax.linen as nn
import optax

from jaxnet.comm import chosen_options
from jaxnet.config.keys import broken_limits, check_types, conforms, key_values
from jaxnet.config.run import Config
from jaxnet.config.strategy import check_ensemble, check_hybrid, strategy_of
from jaxnet.data import Source
from jaxnet.errors import InputError, shown, users_code
from jaxnet.limits import Count, broken_limit, without_limits
from jaxnet.models import Model
from jaxnet.optimizer import Optimizer
from jaxnet.tasks.task import Task


def check_config(config: Config) -> None:
    """Refuse what cannot run on any mesh, with any data."""
    check_parts(config)
    check_types(config)
    check_limits(config)
    for key, value, wanted in broken_limits(config):
        raise InputError(f"{key}={shown(value)}: wanted {wanted}")
    check_task(config.task)
    if axes := getattr(config.model, "norm_axes", ()):
        raise InputError(f"model.norm_axes={shown(axes)}: set batch_norm=local, host or global instead")
    check_recipe(config)
    check_validation(config)
    strategy, mode = strategy_of(config)
    check_compiler_options(config)
    check_ensemble(config, strategy, mode)
    check_hybrid(config, strategy, mode)


# ---- Values that no program and no system takes: too large and too small numbers, text that ends C's ----


_MOST = 10**9  # programs count in int32
_MOST_BYTES = 2**62  # and bytes in int64
_LARGEST, _SMALLEST = 1e38, 1e-38  # float32 ends there


def check_limits(config: Any) -> None:
    """Refuse a number that no program can count or compute with, and text with a NUL; alone or in a tuple."""
    for key, value, _ in key_values(config):
        for leaf in _scalars(value):
            if wanted := _beyond(key, leaf):
                big = isinstance(leaf, int) and abs(leaf) >= 10**30
                got = f"an integer of {leaf.bit_length()} bits" if big else shown(leaf)
                raise InputError(f"{key}={got}: wanted {wanted}")


def _scalars(value: Any) -> Iterator[Any]:
    """A value, or what a tuple holds, tuples in it too."""
    if isinstance(value, tuple):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, int | float | str):
        yield value


def _beyond(key: str, value: float | str) -> str | None:
    """What was wanted in place of a value beyond all limits."""
    if isinstance(value, str):
        return "text without NUL characters, which no file name has" if "\0" in value else None
    if isinstance(value, int):
        most = 2**63 if key.endswith("seed") else _MOST_BYTES if key.endswith("_bytes") else _MOST
        return None if abs(value) <= most else f"at most {most}" if value > 0 else f"at least {-most}"
    if abs(value) > _LARGEST:
        return f"{-_LARGEST:g} to {_LARGEST:g}: devices compute in float32, where this is infinite"
    if 0 < abs(value) < _SMALLEST:
        return f"0, or at least {_SMALLEST:g}: devices compute in float32, where this is 0"
    return None


# ---- The recipe: what does not go together, and what is strange ----


def check_recipe(config: Config) -> None:
    """Refuse a schedule, of the rate or of the images' size, that cannot be followed."""
    if isinstance(config.optimizer, Optimizer):
        _check_optimizer(config.optimizer)
    elif not isinstance(config.optimizer, optax.GradientTransformation) and (
        isinstance(config.optimizer, type) or not callable(config.optimizer)
    ):
        raise InputError(
            f"optimizer is {_kind(config.optimizer)}: wanted an Optimizer(...), an Optax transformation such as "
            "optax.adamw(1e-3), or a function of the total steps that makes one"
        )
    elif not isinstance(config.optimizer, optax.GradientTransformation) and _of_optax(config.optimizer):
        name = config.optimizer.__name__
        raise InputError(
            f"optimizer is optax.{name} itself, and the total steps would be its first argument: call it, "
            f"as optax.{name}(1e-3)"
        )
    if config.task.resolutions:
        _check_resolutions(config.task.resolutions)


def _of_optax(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__module__.partition(".")[0] == "optax"


def _check_optimizer(optimizer: Optimizer) -> None:
    if optimizer.warmup_steps and optimizer.warmup_epochs:
        raise InputError(
            f"optimizer.warmup_steps={optimizer.warmup_steps} and optimizer.warmup_epochs={optimizer.warmup_epochs}: "
            "both say how long warm-up is; set one of them to 0"
        )
    _check_milestones(optimizer)
    for pattern, multiplier in optimizer.groups:
        if multiplier < 0:
            raise InputError(f"optimizer.groups: {pattern!r} has the multiplier {multiplier}: wanted at least 0")


def recipe_warnings(config: Config, source: Source, steps_per_epoch: float, total_steps: int) -> Iterator[str]:
    """A line for each thing that was asked for and does nothing, or ruins the run.

    No reason to refuse: whether a program runs is tried with a few steps, and a config serves more than one data set.
    """
    if warning := endless_warmup(config, steps_per_epoch, total_steps):
        yield warning
    if isinstance(config.optimizer, Optimizer) and config.optimizer.name == "lamb" and config.optimizer.nesterov:
        yield "optimizer.nesterov=true: it counts for nothing with optimizer.name=lamb; leave it out"
    profile = config.profile
    if profile.steps and profile.start >= total_steps:
        yield f"profile.start={profile.start}: the run has {total_steps} steps, so nothing is traced; begin earlier"
    if config.batch_size > source.num_examples:
        times = config.batch_size / source.num_examples
        yield (
            f"batch_size={config.batch_size} is more than the {source.num_examples} training examples, so a step takes "
            f"{times:.1f} epochs; lower it"
        )
    yield from config.task.warnings(source)


def endless_warmup(config: Config, steps_per_epoch: float, total_steps: int) -> str | None:
    """The line that says that the rate never stops rising, as in a long recipe that was cut short; or None."""
    given = config.optimizer
    if not isinstance(given, Optimizer):
        return None
    warmup = given.for_run(config.batch_size, steps_per_epoch).warmup_steps
    if not warmup or warmup < total_steps:
        return None
    key = f"warmup_steps={given.warmup_steps}" if given.warmup_steps else f"warmup_epochs={given.warmup_epochs:g}"
    return (
        f"optimizer.{key}: warm-up takes {warmup} steps and the run {total_steps}, so the learning rate only rises and "
        f"optimizer.schedule={given.schedule} never begins; shorten warm-up, or raise epochs"
    )


def _check_milestones(optimizer: Optimizer) -> None:
    got = f"optimizer.milestones={optimizer.milestones}"
    if (optimizer.schedule == "step") != bool(optimizer.milestones):
        raise InputError(
            f"{got} does not go with optimizer.schedule={optimizer.schedule}: schedule=step needs milestones, such as "
            "0.333,0.667, and the others have none"
        )
    edges = (0.0, *optimizer.milestones, 1.0)
    if any(before >= after for before, after in itertools.pairwise(edges)):
        raise InputError(f"{got}: wanted parts of the run between 0 and 1, each larger than the one before")


def _check_resolutions(resolutions: tuple[tuple[float, int], ...]) -> None:
    starts, sizes = zip(*resolutions, strict=True)
    edges = (*starts, 1.0)
    if starts[0] != 0 or any(before >= after for before, after in itertools.pairwise(edges)) or min(sizes) < 1:
        raise InputError(
            f"task.resolutions={resolutions}: wanted (part of the run, size) from 0 on, each part larger than the one "
            "before and below 1, such as 0:128,0.5:160"
        )


def check_validation(config: Config) -> None:
    """Refuse to choose by the test examples, or by none."""
    if config.validation in ("train", "test"):
        raise InputError(
            f"validation={config.validation}: wanted examples that are neither trained on nor tested with: the name of "
            "another split, or a part of the training examples such as 0.1"
        )
    if config.early_stopping.patience is not None and config.validation is None:
        raise InputError(
            f"early_stopping.patience={config.early_stopping.patience} needs examples to judge by: set validation to a "
            "part of the training examples, such as 0.1, or to the name of a split"
        )


# ---- Parts that are none ----


def check_compiler_options(config: Config) -> None:
    """Refuse options that name nothing, or that would not reach the compiler."""
    try:
        chosen_options(config.compiler_options)
    except ValueError as error:
        raise InputError(f"compiler_options: {error}") from None
    if config.compiler_options and config.mode == "pieces":
        raise InputError("compiler_options do not go with mode=pieces, whose programs have options of their own")


def check_parts(config: Config) -> None:
    """Refuse a model, a data set or a task that is none."""
    if not isinstance(config.model, nn.Module | Model):
        raise InputError(
            f"model is {_kind(config.model)}: wanted a Flax Linen module{_called(config.model)}; one of NNX as "
            "jaxnet.models.from_nnx(lambda rngs: MyNet(..., rngs=rngs))"
        )
    with users_code(f"data: what looks up load of {type(config.data).__name__}"):
        loads = not isinstance(config.data, type) and callable(getattr(config.data, "load", None))
    if not loads:
        made = _called(config.data) or " of jaxnet.data, such as Digits()"
        raise InputError(f"data is {_kind(config.data)}: wanted a data set{made}")
    if not isinstance(config.task, Task):
        raise InputError(
            f"task is {_kind(config.task)}: wanted a jaxnet.Task, such as ImageClassification(), or a subclass of yours"
        )


def check_task(task: Task) -> None:
    """Refuse a task of one's own whose values are not of the kind that `Task` declares."""
    kinds: dict[str, tuple[Any, str]] = {
        "best": (str, "the name of a metric"),
        "best_mode": (Literal["min", "max"], "'min' or 'max'"),
        "needs": (tuple[str, ...], "names of arrays: ('features',)"),
        "resolutions": (tuple[tuple[float, int], ...], "pairs (part of the run, size), or ()"),
        "group": (Count, "a whole number of at least 1"),
    }
    for name, (kind, wanted) in kinds.items():
        with users_code(f"task: {type(task).__name__}.{name}"):
            value = getattr(task, name)
        if not conforms(value, without_limits(kind)) or broken_limit(kind, value):
            raise InputError(f"task: {type(task).__name__}.{name} is {shown(value)}: wanted {wanted}")


def _called(value: Any) -> str:
    """How an object is made of a class that was given in its place."""
    return f" such as {value.__name__}(...)" if isinstance(value, type) else ""


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
