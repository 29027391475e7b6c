"""Make the model and the data set of a run again, from the settings that a checkpoint holds.

Settings are what `jaxnet.config.keys.flatten` writes: the class of each object, and the values of its fields. Only
classes of jaxnet are made again, by looking them up, and those that an installed package declares as its own:

    [project.entry-points."jaxnet.models"]       # or jaxnet.tasks, jaxnet.data
    mixer = "their_package.nets:Mixer"

Nothing else is imported because a file names it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

import flax.linen as nn

import jaxnet.data
import jaxnet.models
import jaxnet.tasks
from jaxnet.config.keys import (
    broken_limits,
    class_name,
    conforms,
    describe,
    field_types,
    is_group,
    is_plain,
    key_values,
)
from jaxnet.errors import InputError
from jaxnet.tasks import Task

Settings = Mapping[str, Any]


def rebuild_model(settings: Settings, where: str) -> nn.Module:
    """Return the model of a run, if its class is one of jaxnet.models; errors call the file `where`."""
    modules = _classes(vars(jaxnet.models).values(), nn.Module)
    return rebuild(settings, "model", modules, where)


def rebuild_task(settings: Settings, where: str) -> Task:
    """Return the task of a run, if its class is one of jaxnet.tasks."""
    task: Task = rebuild(settings, "task", _classes(vars(jaxnet.tasks).values()), where)
    return task


def rebuild_data(settings: Settings, where: str) -> Any:
    """Return the data set of a run, if its class is one of jaxnet.data."""
    there = (value for value in vars(jaxnet.data).values() if hasattr(value, "load"))
    return rebuild(settings, "data", _classes(there), where)


def _classes(values: Iterable[Any], base: type = object) -> dict[str, type]:
    found = [value for value in values if isinstance(value, type) and issubclass(value, base)]
    return {cls.__qualname__: cls for cls in found}


def rebuild(settings: Settings, key: str, known: Mapping[str, type], where: str) -> Any:
    """Return the object that was saved under `key`.

    Raises:
        InputError: its class is not in `known`, or does not accept the saved fields.

    >>> settings = {"task": "jaxnet.tasks.ImageClassification", "task.pixels": "jaxnet.training.loss.Pixels"}
    >>> rebuild_task({**settings, "task.pixels.mean": [0.1]}, "a checkpoint").pixels.mean
    (0.1,)
    """
    name = settings.get(key)
    # By its name alone: a class of jaxnet may have moved to another module since it was saved.
    ours = isinstance(name, str) and name.startswith("jaxnet.")
    found = known.get(class_name(name)) if ours else _declared(name, key, where)
    if found is None:
        named = "a Model, such as from_nnx makes" if str(name).startswith("Model(") else f"{name!r:.80}"
        raise InputError(
            f"{where}: its {key} is {named}, which is not of jaxnet and is not loaded; give the config that it "
            "was trained with, as --config FILE (in Python config=FILE): that is a Python program, which is then run"
        )
    prefix = f"{key}."
    own = {path.removeprefix(prefix): value for path, value in settings.items() if path.startswith(prefix)}
    groups = {path.partition(".")[0] for path in own if "." in path}
    fields = {
        field: rebuild(settings, prefix + field, known, where) if field in groups else _tuples(value)
        for field, value in own.items()
        if "." not in field
    }
    try:
        made = found(**fields)
    except Exception as error:  # any error of the class about the values
        raise InputError(f"{where}: its {key}, {name}, cannot be made again: {error}") from error
    for path, value, kind in key_values(made):
        if not conforms(value, kind):
            raise InputError(f"{where}: {key}.{path} is {value!r:.60}, wanted {describe(kind)}")
    for path, value, wanted in broken_limits(made):
        raise InputError(f"{where}: {key}.{path} is {value!r:.60}, wanted {wanted}")
    return made


def _declared(name: Any, key: str, where: str) -> type | None:
    """The class of this name, if an installed package declares it as one of its models, tasks or data sets."""
    group = {"model": "jaxnet.models", "task": "jaxnet.tasks", "data": "jaxnet.data"}.get(key.partition(".")[0], "")
    for entry in entry_points(group=group):
        if f"{entry.module}.{entry.attr}" == name:
            try:
                declared: type = entry.load()
            except Exception as error:  # whatever the package raises when it is imported
                raise InputError(f"{where}: its {key}, {name}, cannot be imported: {error}") from error
            return declared
    return None


def with_trained_values(given: Any, settings: Settings, prefix: str) -> Any:
    """Return an object of a config with the plain values of the run: its command line may have changed them.

    >>> from jaxnet.tasks import Pixels
    >>> with_trained_values(Pixels(), {"pixels.mean": [0.1], "pixels.other": 3}, "pixels.").mean
    (0.1,)
    """
    if not is_group(given):
        return given
    changed = {}
    for name, kind in field_types(given).items():
        old, key = getattr(given, name), f"{prefix}{name}"
        new = _tuples(settings.get(key, old))
        if is_group(old):
            changed[name] = with_trained_values(old, settings, f"{key}.")
        elif is_plain(old) and conforms(new, kind) and new != old:
            changed[name] = new
    return dataclasses.replace(given, **changed) if changed else given


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
