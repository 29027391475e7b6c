"""Refuses a config that does not fit what it meets: the mesh, the data, the memory of the devices, the model."""

from typing import Any

import jax
from jax.sharding import Mesh

from jaxnet.comm import HOST, Averaging, Reducer, Strategy, is_described, mesh_size
from jaxnet.config.run import Config
from jaxnet.data import Source
from jaxnet.data.photos.views import usual_resize
from jaxnet.errors import InputError
from jaxnet.limits import memory_bytes
from jaxnet.models import Model, Variables
from jaxnet.optimizer import Optimizer
from jaxnet.parallel import Mode

_MOST_STEPS = 2**31  # the step is an int32

# ---- The mesh and the number of examples ----


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


# ---- Memory ----


def check_parameters(mesh: Mesh, parameters: Any, held: float) -> None:
    """Refuse parameters of these shapes, of which a process holds so many bytes with all that is kept of each."""
    memory = _memory_of(mesh)
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
    memory, examples = _memory_of(mesh), config.batch_size / config.microbatches / jax.process_count()
    taken = examples * bytes_of(inputs)
    if memory is not None and taken > memory:
        shapes = ", ".join("x".join(map(str, leaf.shape[1:])) for leaf in jax.tree.leaves(inputs))
        raise InputError(
            f"batch_size={config.batch_size}: {examples:,.0f} examples of {shapes} take {_gigabytes(taken)} on the "
            f"devices of this process, which have {_gigabytes(memory)}; give fewer or smaller ones, or more "
            "microbatches"
        )


def check_step_memory(mesh: Mesh, needed: int) -> None:
    """Refuse a compiled step that needs so many bytes on each device, if they do not have them."""
    memory, held = _memory_of(mesh), len(mesh.local_devices) * needed
    if memory is not None and held > memory:
        raise InputError(
            f"batch_size: a step needs {_gigabytes(held)} on the devices of this process, which have "
            f"{_gigabytes(memory)}; give fewer or smaller examples, more microbatches, or a smaller model"
        )


def _memory_of(mesh: Mesh) -> int | None:
    """Bytes of memory of this process's devices, which on the CPU are the machine's; None: nobody says."""
    devices = list(mesh.local_devices)
    if not devices or devices[0].platform == "cpu":
        return memory_bytes()
    if is_described(mesh):
        return None
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return None if None in limits else sum(limit for limit in limits if limit is not None)


def bytes_of(shapes: Any) -> int:
    """Bytes of arrays of these shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:,.0f} GB"


# ---- The model ----


def check_model(
    config: Config,
    model: Model,
    variables: Variables,
    source: Source,
    inputs: Any,
    examples: int = 1,
) -> Any:
    """Refuse a model (`variables`: their shapes) that would train in silence on something else than asked for.

    `inputs` are the shapes of what it is called with for so many examples. With two, a model that mixes them up shows.
    Returns the shapes of what it gives for one.
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
    return one


def check_axes(strategy: Strategy, mesh: Mesh, params: Any) -> None:
    """Refuse a reducer that sums over some axes of the mesh only: each group of devices would train by itself.

    One that plans nothing says nothing of it; `verify` then names what its program sends.
    """
    if strategy.reducer is None or not any(leaf.size for leaf in jax.tree.leaves(params)):
        return
    planned = strategy.reducer.plan(params, mesh.shape).collectives
    summed = {axis for each in planned for axis in each.axes}
    alone = [axis for axis, size in mesh.shape.items() if size > 1 and axis not in summed]
    if planned and alone:
        sizes = "x".join(map(str, mesh.shape.values()))
        raise InputError(
            f"strategy={strategy.label}: nothing in it is summed over the axis {' and '.join(map(repr, alone))} of the "
            f"mesh {sizes}; wanted sums over all of 'host' and 'device' that are longer than 1"
        )


def check_memory(strategy: Strategy, mesh: Mesh, params: Any) -> None:
    """Refuse to average parameters with a reducer that remembers: from round to round nothing is kept of it."""
    reducer = strategy.reducer
    if not isinstance(strategy.schedule, Averaging) or not isinstance(reducer, Reducer):
        return
    if jax.tree.leaves(jax.eval_shape(lambda: reducer.init(params, mesh.shape))):
        raise InputError(
            f"strategy={strategy.label}: its reducer remembers what it has not sent, and a mean of parameters is taken "
            "anew in each round; wanted one without a state, such as bucketed(all_reduce('host', 'device'), 25 * MiB)"
        )


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
