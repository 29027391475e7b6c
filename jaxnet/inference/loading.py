"""From a workdir, a checkpoint or a file of weights to a network, and from there to a predictor."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxnet.checkpoints import Best, Found, find_checkpoint, read_leaves
from jaxnet.data import Inputs, inputs_of, open_split
from jaxnet.errors import InputError
from jaxnet.inference.exported import load_exported
from jaxnet.inference.network import Architecture, Network, Weights, in_dtype
from jaxnet.inference.predictor import Predictor, batch_sizes
from jaxnet.inference.rebuild import as_trained, rebuilt_data, rebuilt_model, rebuilt_pixels
from jaxnet.inference.weights_file import network_of_weights
from jaxnet.models import inference_options
from jaxnet.training.ensemble import member_of
from jaxnet.training.settings.file import load_config

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


def _architecture(found: Found, config: str | Path | None) -> Architecture:
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


def _weights(found: Found, architecture: Architecture) -> Weights:
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
