"""Refuses a config that cannot run, naming the key, what was got and what was wanted."""

import itertools
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from jaxnet.comm import (
    HOST,
    STRATEGIES,
    AllReduce,
    Strategy,
    chosen_options,
    is_described,
    mesh_size,
    named_strategy,
    platform_of,
    takes_all_reduce,
)
from jaxnet.config.keys import broken_limits, check_types, conforms, key_values
from jaxnet.config.run import Config
from jaxnet.cost.choice import Choice
from jaxnet.data import Source
from jaxnet.data.photos.views import usual_resize
from jaxnet.errors import InputError, shown, users_code
from jaxnet.limits import Count, broken_limit, memory_bytes, without_limits
from jaxnet.models import Model, Variables
from jaxnet.optimizer import Optimizer
from jaxnet.parallel import Mode
from jaxnet.parallel.pieces import crosses_steps, sums_by_message
from jaxnet.parallel.state import check_scale, needs_scale
from jaxnet.tasks.task import Task

# ---- Refuses values that no program and no system takes: too large and too small numbers, text that ends C's


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


# ---- Refuses a recipe whose parts do not go together, or says that it is a strange one ----------------


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


_MOST_STEPS = 2**31  # the step is an int32


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


def strategy_of(
    config: Config, all_reduce: AllReduce | None = None, mesh: Mesh | None = None, choice: Choice | None = None
) -> tuple[Strategy, Mode]:
    """The strategy and the mode of the step that a config asks for; InputError if they do not go together.

    Args:
        config: of the run.
        all_reduce: makes the sums across hosts of a named strategy, such as `mpi_all_reduce`; None: XLA's.
        mesh: by whose devices the buckets of a named strategy are sized; None: one that is not known yet, of CPUs.
        choice: what 'auto' is; None: what it mostly is on such devices.
    """
    if choice is not None:
        size = config.bucket_bytes or choice.bucket_bytes
        config = replace(config, strategy=choice.strategy, bucket_bytes=size)
    strategy = _strategy(config, all_reduce, "cpu" if mesh is None else platform_of(mesh))
    mode: Mode = _auto_mode(config, strategy, mesh) if config.mode == "auto" else config.mode
    asked = f"strategy={strategy.label}"
    by_xla = strategy.kind == "xla"
    if (mode == "jit") != by_xla:
        raise InputError(
            f"mode={config.mode} does not go with {asked}: mode=jit goes with strategy=xla "
            "alone, where XLA reduces the gradients; leave mode=auto"
        )
    if mode == "pmap" and strategy.kind == "sharded":
        raise InputError(
            f"mode=pmap does not go with {asked}, which carries the state in shards; use "
            "mode=shard_map, which does the same on any mesh"
        )
    if mode in ("pmap", "pieces") and strategy.kind == "local":
        raise InputError(
            f"mode={mode} does not go with {asked}, which gives each device parameters of its own; use mode=shard_map"
        )
    if mode == "pieces":
        _check_pieces(config, strategy)
    check_scale(config.model, config.guard.skip, strategy.label, strategy.when)
    if by_xla and config.batch_norm == "host":
        raise InputError("batch_norm=host does not go with strategy=xla, which normalizes by the global batch")
    return strategy, mode


def _auto_mode(config: Config, strategy: Strategy, mesh: Mesh | None) -> Mode:
    """'pieces' where messages are to cross the end of a step and nothing forbids it; 'jit' if XLA reduces."""
    if strategy.kind == "xla":
        return "jit"
    one_program = config.ensemble.on or config.shard_dense or config.compiler_options or config.transport == "mpi"
    if one_program or config.batch_norm != "local" or mesh is None:
        return "shard_map"
    return "pieces" if crosses_steps(strategy, mesh) else "shard_map"


def _strategy(config: Config, all_reduce: AllReduce | None, platform: str) -> Strategy:
    """The config's strategy: the value that it holds, or the one that it names."""
    if isinstance(config.strategy, Strategy):
        if config.bucket_bytes is not None:
            raise InputError(
                f"bucket_bytes={config.bucket_bytes} sets the buckets of a strategy's name, and strategy is "
                f"{config.strategy.expression}: give the size there, and leave bucket_bytes out"
            )
        if config.transport == "mpi":
            raise InputError(
                f"transport=mpi takes a strategy by its name, and strategy is {config.strategy.expression}; name one, "
                "such as hierarchical"
            )
        return config.strategy
    try:
        strategy = named_strategy(config.strategy, config.bucket_bytes, all_reduce, platform)
    except ValueError as error:
        raise InputError(str(error)) from error
    if config.transport == "mpi":
        _check_mpi(config, config.strategy)
    return strategy


def _check_pieces(config: Config, strategy: Strategy) -> None:
    """What computes in mode 'pieces' is a program of one device: refuse what sums elsewhere than in messages."""
    if not sums_by_message(strategy):
        raise InputError(
            f"mode=pieces does not go with strategy={strategy.label}, which does not sum message by message; "
            "use mode=shard_map"
        )
    if config.batch_norm != "local":
        raise InputError(
            f"batch_norm={config.batch_norm} does not go with mode=pieces, where a device knows its own batch alone; "
            "set batch_norm=local or mode=shard_map"
        )


def _check_mpi(config: Config, name: str) -> None:
    """With MPI the mesh has the devices of one rank alone: refuse what sums over the mesh by itself."""
    if not takes_all_reduce(name):
        able = ", ".join(filter(takes_all_reduce, STRATEGIES))
        raise InputError(
            f"strategy={name} does not go with transport=mpi, which carries an all-reduce across hosts and "
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
    group = config.task.group
    mixed = "" if group == 1 else f", each with groups of {group} examples"
    share = devices * config.microbatches * group
    _check_multiple("batch_size", config.batch_size, share, f"{devices} devices{parts}{mixed}")
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
    if not isinstance(config.optimizer, Optimizer):
        return
    warmup = config.optimizer.warmup_epochs * source.num_examples / config.batch_size
    if warmup >= _MOST_STEPS / 2:
        raise InputError(
            f"optimizer.warmup_epochs={config.optimizer.warmup_epochs}: makes {warmup:.3g} steps; "
            f"wanted below {_MOST_STEPS // 2}"
        )


def _check_multiple(key: str, value: int, share: int, whom: str) -> None:
    if value % share:
        nearest = max(1, round(value / share)) * share
        raise InputError(f"{key}={value}: wanted a multiple of {share}, for {whom}; nearest: {nearest}")


def check_parameters(mesh: Mesh, parameters: Any, held: float) -> None:
    """Refuse parameters of these shapes, of which a process holds so many bytes with all that is kept of each."""
    memory = memory_of(mesh)
    if memory is not None and held > memory:
        count = sum(leaf.size for leaf in jax.tree.leaves(parameters))
        raise InputError(
            f"model: {count:,} parameters with all that is kept of each take {_gigabytes(held)} on the devices of this "
            f"process, which have {_gigabytes(memory)}; make it smaller"
        )


def check_batch(config: Config, mesh: Mesh, inputs: Any) -> None:
    """Refuse a share of a batch that all memory of this process's devices cannot hold.

    `inputs` are the shapes of what the model is called with for one example. Nothing is refused that might fit: a step
    takes several times as much.
    """
    memory, examples = memory_of(mesh), config.batch_size / config.microbatches / jax.process_count()
    taken = examples * bytes_of(inputs)
    if memory is not None and taken > memory:
        shapes = ", ".join("x".join(map(str, leaf.shape[1:])) for leaf in jax.tree.leaves(inputs))
        raise InputError(
            f"batch_size={config.batch_size}: {examples:,.0f} examples of {shapes} take {_gigabytes(taken)} on the "
            f"devices of this process, which have {_gigabytes(memory)}; give fewer or smaller ones, or more "
            "microbatches"
        )


def bytes_of(shapes: Any) -> int:
    """Bytes of arrays of these shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def check_step_memory(mesh: Mesh, needed: int) -> None:
    """Refuse a compiled step that needs so many bytes on each device, if they do not have them."""
    memory, held = memory_of(mesh), len(mesh.local_devices) * needed
    if memory is not None and held > memory:
        raise InputError(
            f"batch_size: a step needs {_gigabytes(held)} on the devices of this process, which have "
            f"{_gigabytes(memory)}; give fewer or smaller examples, more microbatches, or a smaller model"
        )


def memory_of(mesh: Mesh) -> int | None:
    """Bytes of memory of this process's devices, which on the CPU are the machine's; None: nobody says."""
    devices = list(mesh.local_devices)
    if not devices or devices[0].platform == "cpu":
        return memory_bytes()
    if is_described(mesh):
        return None
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return None if None in limits else sum(limit for limit in limits if limit is not None)


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:,.0f} GB"


def check_model(
    config: Config,
    model: Model,
    variables: Variables,
    source: Source,
    inputs: Any,
    examples: int = 1,
) -> None:
    """Refuse a model (`variables`: their shapes) that would train in silence on something else than asked for.

    `inputs` are the shapes of what it is called with for so many examples. With two, a model that mixes them up shows.
    """
    outputs = _outputs(model, variables, inputs)
    if hasattr(outputs, "shape") and outputs.shape[:1] != (examples,):
        raise InputError(
            f"the model gives {list(outputs.shape)} for {examples} examples: wanted an output for each, such as "
            f"logits, [{examples}, classes]"
        )
    one = jax.tree.map(
        lambda leaf: leaf.update(shape=(1, *leaf.shape[1:])) if leaf.shape[:1] == (examples,) else leaf, outputs
    )
    config.task.check_model(config.model, one, source)


def check_norm(config: Config, mode: Mode, stats: Any) -> None:
    """Refuse a BatchNorm that is to normalize over several devices and cannot be told so.

    `stats` are its running averages; there are none without it.
    """
    shared = config.batch_norm != "local" and mode != "jit"
    if shared and jax.tree.leaves(stats) and not hasattr(config.model, "norm_axes"):
        raise InputError(
            f"batch_norm={config.batch_norm}: the model has no field norm_axes that would tell its BatchNorm; give "
            "it one, as jaxnet.models.CNN has, or set batch_norm=local"
        )


def check_tests(config: Config, model: Model, variables: Variables, trained: Any, tested: Any) -> None:
    """Refuse test examples that a model with variables of these shapes, those of training examples, cannot take.

    `trained` and `tested` are the shapes of what it is called with for one example of each.
    """
    if tested == trained:
        return
    try:
        _outputs(model, variables, tested)
    except Exception as error:  # whatever the model has against them
        keys, cure = "", "give them one shape, as task.pixels.size=N does for images"
        if getattr(config.data, "test_size", None) is not None:
            size = config.data.size
            keys = f"data.size={size} and data.test_size={config.data.test_size}: "
            cure = f"set data.test_size={size} and data.test_resize={usual_resize(size)}"
        shapes = [", ".join("x".join(map(str, x.shape[1:])) for x in jax.tree.leaves(of)) for of in (trained, tested)]
        raise InputError(
            f"{keys}the network learns from examples of {shapes[0]} and does not take test examples of {shapes[1]}; "
            f"{cure}, or take a network that averages over all places before its dense layers, such as ResNet"
        ) from error


def _outputs(model: Model, variables: Variables, inputs: Any) -> Any:
    """The shapes of what an evaluation gives for one example; nothing is computed."""
    evaluate = lambda params, stats, x: model.apply(params, stats, x, train=False, keys=None)[0]  # noqa: E731
    return jax.eval_shape(evaluate, *variables, inputs)


# ---- Refuses an ensemble that could not be trained as its members would be by themselves --------------


_WAYS = ("shard_map", "jit")


def check_ensemble(config: Config, strategy: Strategy, mode: str) -> None:
    """Refuse what does not go with several members, or with so many."""
    ensemble = config.ensemble
    for key in ("learning_rates", "weight_decays"):
        values: tuple[float, ...] = getattr(ensemble, key)
        if values and (len(values) != ensemble.members or min(values) < 0):
            raise InputError(
                f"ensemble.{key}={values}: wanted one a member, of which there are {ensemble.members} "
                "(ensemble.members), each at least 0; or leave it empty"
            )
    if not ensemble.on:
        return
    if not isinstance(config.optimizer, Optimizer):
        raise InputError(
            f"ensemble.members={ensemble.members} does not go with an Optax transformation of your own; give an "
            "Optimizer(...), or train the members one by one"
        )
    got = _not_of_members(config, strategy, mode)
    if got is not None:
        raise InputError(
            f"{got} does not go with ensemble.members={ensemble.members}: an ensemble takes mode=shard_map or jit, "
            "transport=xla, float32 or bfloat16, and a strategy that sums gradients in every step other than powersgd"
        )
    if config.seed + ensemble.members > 2**32:
        raise InputError(
            f"seed={config.seed}: {ensemble.members} members have this and the next ones; wanted at most "
            f"{2**32 - ensemble.members}"
        )


def _not_of_members(config: Config, strategy: Strategy, mode: str) -> str | None:
    """What stands against several members, as a person has written it."""
    if mode not in _WAYS:
        return f"mode={mode}"
    if config.transport != "xla":
        return f"transport={config.transport}"
    # A matrix of PowerSGD would be all members' kernels, one below the other, with one low rank for all.
    if strategy.kind == "local" or strategy.name.partition(":")[0] == "powersgd":
        return f"strategy={strategy.label}"
    if needs_scale(config.model):  # one scale for all would tie the members to each other
        return "model.dtype=float16"
    return None


def check_hybrid(config: Config, strategy: Strategy, mode: str) -> None:
    """Refuse what does not hold one whole state, or one program with its collectives, for cut layers to be part of."""
    if not config.shard_dense:
        return
    if mode != "shard_map" or strategy.kind != "replicated" or not strategy.exact:
        able = "a strategy that sums gradients exactly in every step, such as hierarchical, and mode=shard_map"
        raise InputError(
            f"shard_dense={','.join(config.shard_dense)} does not go with strategy={strategy.label}, mode={mode}; "
            f"use {able}"
        )
    if config.transport == "mpi":
        raise InputError("shard_dense does not go with transport=mpi; leave transport=xla")
    if config.ensemble.on:
        raise InputError("shard_dense does not go with ensemble.members; train the members one by one")
