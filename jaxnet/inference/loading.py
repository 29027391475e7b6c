"""From a workdir, a checkpoint or a file of weights to a network, and from there to a predictor."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

import jaxnet.data
import jaxnet.models
from jaxnet.checkpoints import Best, FoundCheckpoint, find_checkpoint, read_leaves
from jaxnet.checkpoints.leaves import described, differences_text
from jaxnet.config.file import load_config
from jaxnet.config.keys import conforms, describe, field_types, is_group, is_plain, key_values
from jaxnet.data import Inputs, inputs_of, open_split
from jaxnet.ensembles import member_of
from jaxnet.errors import InputError
from jaxnet.inference.export import load_exported
from jaxnet.inference.predictor import Architecture, Network, Predictor, Weights, batch_sizes, in_dtype
from jaxnet.models import inference_options
from jaxnet.models.zoo import ZOO, nearest
from jaxnet.tasks.classification import Pixels
from jaxnet.weights import HALVES, WeightsMetadata, checked_pixels, is_auxiliary, read_variables

# ---- Saved settings as objects again. A file may name a class of jaxnet, which is looked up; nothing is ever imported
#
# Settings are what `jaxnet.config.keys.flatten` writes: of an object its class, of its fields their values.


Settings = Mapping[str, Any]


def rebuilt_model(settings: Settings, where: str) -> nn.Module:
    """The model of a run, if its class is one of jaxnet.models; `where` is what to call the file."""
    modules = _classes(vars(jaxnet.models).values(), nn.Module)
    return rebuilt(settings, "model", modules, where)


def rebuilt_pixels(settings: Settings, where: str) -> Pixels:
    """How a run normalized images."""
    return rebuilt(settings, "pixels", _classes([Pixels]), where)


def rebuilt_data(settings: Settings, where: str) -> Any:
    """The data set of a run, if its class is one of jaxnet.data."""
    there = (value for value in vars(jaxnet.data).values() if hasattr(value, "load"))
    return rebuilt(settings, "data", _classes(there), where)


def _classes(values: Iterable[Any], base: type = object) -> dict[str, type]:
    found = [value for value in values if isinstance(value, type) and issubclass(value, base)]
    return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in found}


def rebuilt(settings: Settings, key: str, known: Mapping[str, type], where: str) -> Any:
    """The object that was saved under `key`.

    Raises:
        InputError: its class is not `known`, or does not take the fields that were saved.

    >>> settings = {"pixels": "jaxnet.tasks.classification.Pixels", "pixels.mean": [0.1], "pixels.std": [0.2]}
    >>> rebuilt_pixels(settings, "a checkpoint").mean
    (0.1,)
    """
    name = settings.get(key)
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"{where}: its {key} is {name!r:.80}, which is not of jaxnet and is not loaded; give the config that it "
            "was trained with, as --config FILE: that is a Python program, which is then run"
        )
    prefix = f"{key}."
    fields = {path.removeprefix(prefix): _tuples(value) for path, value in settings.items() if path.startswith(prefix)}
    try:
        made = known[name](**fields)
    except Exception as error:  # whatever the class has against the values
        raise InputError(f"{where}: its {key}, {name}, cannot be made again: {error}") from error
    for path, value, kind in key_values(made):
        if not conforms(value, kind):
            raise InputError(f"{where}: {key}.{path} is {value!r:.60}, wanted {describe(kind)}")
    return made


def as_trained(given: Any, settings: Settings, prefix: str) -> Any:
    """An object of a config with the plain values that the run had under `prefix`, as `strides=2` on its command line.

    >>> as_trained(Pixels(), {"pixels.mean": [0.1], "pixels.other": 3}, "pixels.").mean
    (0.1,)
    """
    if not is_group(given):
        return given
    changed = {}
    for name, kind in field_types(given).items():
        old, key = getattr(given, name), f"{prefix}{name}"
        new = _tuples(settings.get(key, old))
        if is_group(old):
            changed[name] = as_trained(old, settings, f"{key}.")
        elif is_plain(old) and conforms(new, kind) and new != old:
            changed[name] = new
    return dataclasses.replace(given, **changed) if changed else given


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ---- A network of the zoo with weights that `jaxnet import` converted ---------------------------------


_PIXELS = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # torchvision's, and DeiT's in timm
_MARGIN = 8 / 7  # 224 is cut out of 256, and the same in other sizes
_PHOTO = 224  # smaller images are resized as a whole


def network_of_weights(path: Path, model: str | None = None) -> Network:
    """The network that the file names, or `model`.

    Images are prepared as torchvision does for its own weights, but for a mean and std that the import was told.

    Raises:
        InputError: the file is not one of `jaxnet import`, or its weights are not those of this network.
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
    inputs = Inputs(entry.image, about.num_classes, resize=round(height * _MARGIN) if height >= _PHOTO else None)
    module = entry.build(num_classes=about.num_classes)
    if about.left_out and hasattr(module, "auxiliary"):  # heads that serve in training alone
        module = module.clone(auxiliary=False)
    architecture = Architecture(module, _pixels(about, name, channels, path), inputs)
    architecture.check(str(path))
    # What a network has for training alone, such as auxiliary heads, is there and not wanted.
    there = {leaf: variables[leaf] for leaf in architecture.shapes if leaf in variables}
    if wrong := differences_text(described(there), described(architecture.shapes)):
        raise InputError(f"{path} does not hold the weights of {name}: {wrong}")
    return Network(architecture, jax.device_put(there, jax.devices()[0]), str(path))


def _pixels(about: WeightsMetadata, name: str, channels: int, path: Path) -> Pixels:
    """As the file says, or as is usual for the network."""
    if about.mean is not None or about.std is not None:
        return Pixels(*checked_pixels(about.mean, about.std, channels, str(path)))
    return Pixels(mean=(0.5,), std=(0.5,)) if name in HALVES or channels != 3 else _PIXELS


_BEST = Best("accuracy", "max")


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
    """What was trained, ready to be called with images, on the first device.

    Args:
        path: the workdir of a run, its checkpoints, one of them, a .safetensors file that `jaxnet import` wrote, or a
            program that `jaxnet export` wrote, which is run as it is.
        step: the checkpoint of that step; default: the newest that is as it was written.
        best: the most accurate checkpoint instead.
        model: for a file of weights, the network's name in the zoo, where the file does not say it.
        config: the config that the run was trained with: a Python program, which is run; needed where the model is
            not one of jaxnet.models.
        dtype: of the parameters and of the computation, instead of those that were trained.
        member: of an ensemble, the network of that number alone, from 0; default: the mean of what all predict.
        batch: the largest batch that is run at once.

    Raises:
        InputError: there is nothing to load, it is damaged, or it is of a kind that is not loaded.
    """
    path = Path(path)
    if path.is_file() and path.suffix != ".safetensors":
        if any((step is not None, best, model, config, dtype, member is not None)):
            raise InputError(f"{path} is a program: leave out step, best, model, config, dtype and member")
        return load_exported(path, batch)
    network = load_network(path, step=step, best=best, model=model, config=config, dtype=dtype, member=member)
    run = jax.jit(network.architecture.probabilities, compiler_options=inference_options(jax.default_backend()))
    return Predictor(
        lambda images: np.asarray(run(network.weights, images)),
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
    """As `load`, without the function around it."""
    path = Path(path)
    if step is not None and best:
        raise InputError(f"step {step} and the best: wanted one of them")
    if path.suffix == ".safetensors":
        if step is not None or best or config is not None or member is not None:
            raise InputError(f"{path} holds the weights of one network: leave out step, best, config and member")
        return _in_dtype(network_of_weights(path, model), dtype)
    if model is not None:
        raise InputError(f"model {model}: a run says itself what it trained; this is for files of weights alone")
    root, step = _place(path, step, best)
    with _of_this_program(path):
        found = find_checkpoint(root, step, _BEST if best else None)
        architecture = _architecture(found, config)
        architecture.check(str(found.path))
        weights = _weights(found, architecture)
    return _in_dtype(_member(Network(architecture, weights, str(found.path)), member), dtype)


def _member(network: Network, member: int | None) -> Network:
    """One network of an ensemble, or all that there are."""
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


def _place(path: Path, step: int | None, best: bool) -> tuple[Path, int | None]:
    """Where the steps are, and which one a path into them means."""
    if not path.is_dir():
        raise InputError(
            f"{path}: {'not a directory' if path.exists() else 'no such file or directory'}; wanted the workdir of a "
            "run, its checkpoints, one of them, a .safetensors file, or one that `jaxnet export` wrote"
        )
    if (path / "checkpoints").is_dir():
        return path / "checkpoints", step
    here = path.absolute()
    if here.name.isdecimal() and (here / "state").is_dir():
        if step is not None or best:
            raise InputError(f"{path} is one checkpoint: leave out the choice of a step")
        return here.parent, int(here.name)
    return path, step


@contextlib.contextmanager
def _of_this_program(path: Path) -> Iterator[None]:
    """A checkpoint of another program holds other things."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no checkpoint of train.py: {error!r}") from error


def _architecture(found: FoundCheckpoint, config: str | Path | None) -> Architecture:
    where, settings = str(found.path), found.extra["config"]
    pixels = rebuilt_pixels(settings, where)
    if config is None:
        model, data = rebuilt_model(settings, where), lambda: rebuilt_data(settings, where)
    else:  # it says what the classes are; their fields are those of the run, which overrides may have changed
        given = load_config(config)
        model, data = as_trained(given.model, settings, "model."), lambda: given.data
    members = settings.get("ensemble.members", 1)  # a run from before there were ensembles does not say
    if not isinstance(members, int) or members < 1:
        raise InputError(f"{where}: ensemble.members is {members!r:.80}, wanted a number of at least 1")
    return Architecture(model, pixels, _inputs(found.extra, data), members)


def _inputs(extra: Mapping[str, Any], data: Any) -> Inputs:
    """As they were saved; a run that saved none had a data set, which can be asked."""
    saved = extra.get("inputs")
    return inputs_of(open_split(data(), "test")) if saved is None else Inputs.from_json(saved)


def _weights(found: FoundCheckpoint, architecture: Architecture) -> Weights:
    """Those that the run evaluates: the averaged parameters where there are any."""
    averaged = any(name.startswith("average/") for name in found.leaves)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    saved = {name: _saved_name(name, averaged) for name in architecture.shapes}
    like = {
        saved[name]: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for name, leaf in architecture.shapes.items()
    }
    leaves = read_leaves(found, like)
    return {name: leaves[saved[name]] for name in saved}


def _saved_name(name: str, averaged: bool) -> str:
    """The leaf of a train state that holds a weight."""
    collection, _, rest = name.partition("/")
    if collection != "params":
        return f"stats/{name}"
    return f"average/{rest}" if averaged else name
