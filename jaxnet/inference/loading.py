"""Load a trained network, from a workdir, a checkpoint, a file of weights or an exported program."""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxnet.checkpoints import FoundCheckpoint, find_checkpoint, read_leaves, steps_at
from jaxnet.checkpoints.leaves import by_name, described, differences_text, shapes_of
from jaxnet.cluster.devices import local_device_count
from jaxnet.config.file import load_config
from jaxnet.config.keys import in_todays_keys
from jaxnet.data import Inputs, inputs_of, open_split
from jaxnet.data.photos.views import usual_resize
from jaxnet.ensembles import member_of
from jaxnet.errors import InputError
from jaxnet.inference.export import load_exported
from jaxnet.inference.network import Architecture, Network, Weights, in_dtype
from jaxnet.inference.predictor import Predictor, batch_sizes
from jaxnet.inference.settings import rebuild_data, rebuild_model, rebuild_task, with_trained_values
from jaxnet.models import inference_options
from jaxnet.models.zoo import ZOO, nearest
from jaxnet.object_storage.reading import fetched_steps
from jaxnet.tasks.classification import ImageClassification, Pixels
from jaxnet.training.initial import saved_dtype, saved_names
from jaxnet.weights import HALVES, WeightsMetadata, checked_pixels, is_auxiliary, read_variables


def load(
    path: str | Path,
    *,
    step: int | None = None,
    best: bool = False,
    model: str | None = None,
    config: str | Path | None = None,
    dtype: str | None = None,
    member: int | None = None,
    batch: int = 32,
) -> Predictor:
    """Return a trained network, ready to be called with images or with arrays by name, on the first device.

    Args:
        path: the workdir of a run, its checkpoints, one of them, a .safetensors file that `jaxnet import` wrote, or a
            program that `jaxnet export` wrote.
        step: load the checkpoint of this step; default: the newest intact one.
        best: load the checkpoint that was the best on the validation examples instead.
        model: for a file of weights, the network's name in the zoo, if the file does not say it.
        config: the config that the run was trained with: a Python program, which is run. Needed if the model or the
            task is not one of jaxnet.
        dtype: the dtype of parameters and computation, instead of the trained one.
        member: load only this network of an ensemble, counted from 0; default: the mean of all predictions.
        batch: the largest batch that is run at once.

    Raises:
        InputError: there is nothing to load, it is damaged, or it is of a kind that cannot be loaded.
    """
    path = Path(path)
    if os.path.isfile(path) and path.suffix != ".safetensors":  # noqa: PTH113  # False where it cannot be seen
        if any((step is not None, best, model, config, dtype, member is not None)):
            raise InputError(f"{path} is a program: leave out step, best, model, config, dtype and member")
        return load_exported(path, batch)
    network = load_network(path, step=step, best=best, model=model, config=config, dtype=dtype, member=member)
    run = jax.jit(network.architecture.predictions, compiler_options=inference_options(jax.default_backend()))
    return Predictor(
        lambda given: jax.device_get(run(network.weights, given)),
        network.architecture.inputs,
        batch_sizes(batch),
        network.where,
    )


def load_network(
    path: str | Path,
    *,
    step: int | None = None,
    best: bool = False,
    model: str | None = None,
    config: str | Path | None = None,
    dtype: str | None = None,
    member: int | None = None,
) -> Network:
    """Return the network that `load` would call; the arguments are those of `load`. Programs have no network."""
    if step is not None and best:
        raise InputError(f"step {step} and the best: wanted one of them")
    local_device_count()  # says in one line why there are none
    path = fetched_steps(path, step, every=best)
    if path.suffix == ".safetensors":
        if step is not None or best or config is not None or member is not None:
            raise InputError(f"{path} holds the weights of one network: leave out step, best, config and member")
        return _in_dtype(network_of_weights(path, model), dtype)
    if model is not None:
        raise InputError(f"model {model}: a run says itself what it trained; this is for files of weights alone")
    root, named = _steps(path)
    if named is not None and (step is not None or best):
        raise InputError(f"{path} is one checkpoint: leave out the choice of a step")
    step = step if named is None else named
    with _require_run(path):
        found = find_checkpoint(root, step, best=best)
        architecture = _architecture(found, config)
        alone = architecture if member is None else dataclasses.replace(architecture, members=1)
        alone.check(str(found.path))
        weights = _weights(found, architecture)
    return _in_dtype(_member(Network(architecture, weights, str(found.path)), member), dtype)


def _member(network: Network, member: int | None) -> Network:
    """Return one network of an ensemble; all of them if `member` is None."""
    if member is None:
        return network
    members = network.architecture.members
    if members == 1 or not 0 <= member < members:
        what = f"an ensemble of {members}: wanted 0 to {members - 1}" if members > 1 else "one network: leave it out"
        raise InputError(f"member {member}: {network.where} holds {what}")
    one = dataclasses.replace(network.architecture, members=1)
    return Network(one, member_of(network.weights, member), network.where)


def _in_dtype(network: Network, dtype: str | None) -> Network:
    return Network(network.architecture.in_dtype(dtype), in_dtype(network.weights, dtype), network.where)


# ---- A checkpoint of a run -----------------------------------------------------------------------------


def _steps(path: Path) -> tuple[Path, int | None]:
    """Return the directory of the steps, and the step that `path` names if it is one of them."""
    try:
        reason = "" if stat.S_ISDIR(path.stat().st_mode) else "not a directory"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", error)).lower()
    if reason:
        raise InputError(
            f"{path}: {reason}; wanted the workdir of a run, its checkpoints, one of them, a .safetensors file, or one "
            "that `jaxnet export` wrote"
        )
    return steps_at(path)


@contextlib.contextmanager
def _require_run(path: Path) -> Iterator[None]:
    """Turn the errors that the checkpoint of another program causes into one InputError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no checkpoint of train.py: {error!r}") from error


def _architecture(found: FoundCheckpoint, config: str | Path | None) -> Architecture:
    where, settings = str(found.path), in_todays_keys(found.extra["config"])
    if config is None:
        task, model = rebuild_task(settings, where), rebuild_model(settings, where)
        data = lambda: rebuild_data(settings, where)  # noqa: E731
    else:  # the config has the classes; their fields come from the run, whose command line may have changed them
        given = load_config(config)
        task, model = (with_trained_values(getattr(given, key), settings, f"{key}.") for key in ("task", "model"))
        data = lambda: given.data  # noqa: E731
    members = settings.get("ensemble.members", 1)  # older runs did not save it
    if not isinstance(members, int) or members < 1:
        raise InputError(f"{where}: ensemble.members is {members!r:.80}, wanted a number of at least 1")
    return Architecture(model, task, _inputs(found.extra, data), members)


def _inputs(extra: Mapping[str, Any], data: Any) -> Inputs | dict[str, Any]:
    """Return the saved images and classes, or the saved shapes of an example; older runs saved none: of their data."""
    if "inputs" in extra:
        return Inputs.from_json(extra["inputs"])
    if "example" in extra:
        return by_name(shapes_of(extra["example"]))
    return inputs_of(open_split(data(), "test"))


def _weights(found: FoundCheckpoint, architecture: Architecture) -> Weights:
    """Read the weights that the run evaluates: the averaged parameters if there are any."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    saved = saved_names(architecture.shapes, found.leaves)
    like = {
        saved[name]: jax.ShapeDtypeStruct(
            leaf.shape, saved_dtype(saved[name], leaf.dtype, found.leaves), sharding=sharding
        )
        for name, leaf in architecture.shapes.items()
    }
    leaves = read_leaves(found, like)
    return {name: leaves[saved[name]].astype(leaf.dtype) for name, leaf in architecture.shapes.items()}


# ---- A file of weights ---------------------------------------------------------------------------------

_PIXELS = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # torchvision's, and DeiT's in timm
_PHOTO = 224  # smaller images are resized whole


def network_of_weights(path: Path, model: str | None = None) -> Network:
    """Return the network that a file of `jaxnet import` names, or `model`, with the weights of the file.

    Images are prepared as torchvision does for its own weights, unless the import was given a mean and std.

    Raises:
        InputError: `jaxnet import` did not write the file, or its weights are not those of this network.
    """
    variables, about = read_variables(path)
    name = model or about.model
    if name not in ZOO:
        raise InputError(f"{path}: there is no network {name!r}; {nearest(name)}")
    if lacking := [leaf for leaf in about.left_out if not is_auxiliary(leaf)]:
        raise InputError(
            f"{path} lacks {', '.join(lacking[:3])}, which the import left out: train it first, with "
            f"initial_weights={path}"
        )
    entry = ZOO[name]
    height, _, channels = entry.image
    inputs = Inputs(entry.image, about.num_classes, resize=usual_resize(height) if height >= _PHOTO else None)
    module = entry.build(num_classes=about.num_classes)
    if about.left_out and hasattr(module, "auxiliary"):  # drop heads for training alone, which the file lacks
        module = module.clone(auxiliary=False)
    task = ImageClassification(pixels=_pixels(about, name, channels, path))
    architecture = Architecture(module, task, inputs)
    architecture.check(str(path))
    # The file may hold more than inference needs, such as auxiliary heads.
    there = {leaf: variables[leaf] for leaf in architecture.shapes if leaf in variables}
    if wrong := differences_text(described(there), described(architecture.shapes)):
        raise InputError(f"{path} does not hold the weights of {name}: {wrong}")
    return Network(architecture, jax.device_put(there, jax.devices()[0]), str(path))


def _pixels(about: WeightsMetadata, name: str, channels: int, path: Path) -> Pixels:
    """Return the normalization that the file names, or else the usual one of the network."""
    if about.mean is not None or about.std is not None:
        return Pixels(*checked_pixels(about.mean, about.std, channels, str(path)))
    return Pixels(mean=(0.5,), std=(0.5,)) if name in HALVES or channels != 3 else _PIXELS
