"""From `configs/NAME.py` and `key.path=value` to a Config."""

import dataclasses
import difflib
import importlib.util
import os
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import jaxnet
import jaxnet.data
import jaxnet.models
from jaxnet.config.check import check_config
from jaxnet.config.keys import all_keys, check_types, conforms, field_types, is_group, parse_value
from jaxnet.config.run import Config
from jaxnet.errors import InputError, error_text, shown


def load_config(path: str | Path, *overrides: str) -> Config:
    """The Config that `get_config()` of a Python file returns, with `key.path=value` overrides.

    A config is a Python program: load only files that you would run. It can import what lies beside it, in the current
    directory, or where Python looks.

    Raises:
        InputError: no such file, no such function, an error in it, an unknown key, a value of a wrong type or
            out of range.
    """
    if not isinstance(path, str | os.PathLike):  # such as a Config itself
        raise InputError(f"config {shown(path)}: wanted the name of a Python file, whose get_config() returns a Config")
    path = Path(path)
    config = _run(path)
    if not issubclass(type(config), Config):
        if type(config) is types.CoroutineType:
            config.close()  # else Python would warn that it was never awaited
        raise InputError(f"config {path}: get_config() returned {shown(config)}, wanted a Config of jaxnet")
    try:
        check_types(config)
    except InputError as error:
        raise InputError(f"config {path}: {error}") from error
    for override in overrides:
        config = apply_override(config, override)
    check_config(config)
    return config


def _run(path: Path) -> Any:
    try:
        return _module(path).get_config()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a program may raise, exits too
        frames = traceback.walk_tb(error.__traceback__)
        lines = [number for frame, number in frames if frame.f_code.co_filename == str(path.absolute())]
        where = f"config {path}, line {lines[-1]}" if lines else f"config {path}"
        what = str(error) if isinstance(error, InputError) else f"{error_text(error)}{_argument_hint(error)}"
        raise InputError(f"{where}: {what}") from error


def _argument_hint(error: BaseException) -> str:
    """The right name of an argument that a class of jaxnet does not have.

    >>> _argument_hint(TypeError("Config.__init__() got an unexpected keyword argument 'epoch'"))
    "; did you mean 'epochs'?"
    """
    found = re.search(r"TypeError: (\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", error_text(error))
    if found is None:
        return ""
    kinds = [getattr(place, found[1]) for place in (jaxnet, jaxnet.data, jaxnet.models) if hasattr(place, found[1])]
    fields = getattr(kinds[0], "__dataclass_fields__", {}) if kinds else {}
    near = difflib.get_close_matches(found[2], fields, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(fields)}" if fields else ""


def _module(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise InputError(_no_such_file(path))
    name = f"config_{path.stem}"  # not its own: a config called json.py would stand in for the module
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise InputError("this is not a Python file: wanted a .py file with get_config()")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where the types of its classes are looked up by name
    # What lies beside it, or here, can be imported. Last, so that a json.py there does not stand in for Python's.
    sys.path += [folder for folder in (str(path.absolute().parent), str(Path.cwd())) if folder not in sys.path]
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError("there is no function get_config(): wanted one that returns a Config")
    return module


def _no_such_file(path: Path) -> str:
    if path.is_dir():
        return f"this is a directory: wanted a Python file with get_config(){_examples(path)}"
    places = dict.fromkeys((path.parent, Path("configs")))
    configs = {other.stem: str(other) for place in places for other in _configs_in(place)}
    near = difflib.get_close_matches(path.stem, configs, n=1)
    begin = "" if configs else f"; `jaxnet new {path.name}` writes one to begin with"
    hint = f"; did you mean {configs[near[0]]}?" if near else f"; wanted a Python file{_examples(path.parent)}{begin}"
    return f"no such file (looked for from {Path.cwd()}){hint}"


def _configs_in(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.py"))
    return [file for file in files if "def get_config(" in file.read_text(errors="replace")]


def _examples(directory: Path) -> str:
    found = ", ".join(str(file) for file in _configs_in(directory)[:5])
    return f", such as {found}" if found else ""


def apply_override(config: Any, override: str) -> Any:
    """A copy of `config` with one `key.path=value` applied; the value is read as the field's type.

    >>> from jaxnet.optimizer import Optimizer
    >>> apply_override(Optimizer(), "learning_rate=0.5").learning_rate
    0.5
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"override {override!r} is not of the form key=value, such as optimizer.learning_rate=0.1")
    return _replaced(config, key.split("."), key, text, config)


def _replaced(node: Any, path: list[str], key: str, text: str, root: Any) -> Any:
    name, rest = path[0], path[1:]
    kinds = field_types(node)
    if name not in kinds or (rest and not is_group(getattr(node, name))):
        raise InputError(_unknown_key(key, root))
    old = getattr(node, name)
    if rest:
        value = _replaced(old, rest, key, text, root)
    elif is_group(old):
        inner = ", ".join(f"{key}.{name}" for name in field_types(old))
        cure = f"set one of {inner}" if inner else "it has none; another one is set in the config file"
        if kinds_of_name := field_types(old).get("name"):
            cure = f"set {key}.name={text}, or {cure.removeprefix('set ')}" if conforms(text, kinds_of_name) else cure
        raise InputError(f"{key} is a group of keys, not a value; {cure}")
    else:
        value = parse_value(text, kinds[name], key)
    try:
        return dataclasses.replace(node, **{name: value})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the class itself has against the value
        said = str(error) if isinstance(error, InputError) else error_text(error)
        raise InputError(f"{key}={text}: {said}") from error


def _unknown_key(key: str, root: Any) -> str:
    keys = list(all_keys(root))
    near = difflib.get_close_matches(key, keys, n=1)
    # A wrong path with a right last word is the commonest slip of all.
    last = key.rpartition(".")[2]
    same_word = [other for other in keys if last in (other.rpartition(".")[2], _initials(other.rpartition(".")[2]))]
    guesses = " or ".join(map(repr, same_word or near))
    beside = [other for other in keys if other.startswith(f"{key.rpartition('.')[0]}.")]
    groups = dict.fromkeys(other.partition(".")[0] for other in keys)
    there = beside or [each if each in keys else f"{each}.*" for each in groups]
    hint = f"did you mean {guesses}?" if guesses else f"there are: {', '.join(there)}"
    return f"no config key {key!r}; {hint}"


def _initials(word: str) -> str:
    """What people shorten a key to: 'lr' of 'learning_rate'; nothing of a single word."""
    parts = word.split("_")
    return "".join(part[:1] for part in parts) if len(parts) > 1 else ""
