"""Saved settings as objects again. A file may name a class of jaxnet, which is looked up; nothing is ever imported.

Settings are what `jaxnet.training.settings.keys.flatten` writes: of an object its class, of its fields their values.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn

import jaxnet.data
import jaxnet.models
from jaxnet.errors import InputError
from jaxnet.training.loss import Pixels
from jaxnet.training.settings.keys import field_types, is_group, is_plain, key_values
from jaxnet.training.settings.typed_value import conforms, describe

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

    >>> settings = {"pixels": "jaxnet.training.loss.Pixels", "pixels.mean": [0.1], "pixels.std": [0.2]}
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
