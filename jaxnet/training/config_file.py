"""From `configs/NAME.py` and `key.path=value` to a Config, and from a Config to JSON."""

import dataclasses
import difflib
import importlib.util
import json
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxnet.errors import InputError
from jaxnet.training.config import Config
from jaxnet.training.typed_value import parse_value


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The Config that `get_config()` of a Python file returns, with `key.path=value` overrides.

    A config is a Python program: load only files that you would run.

    Raises:
        InputError: no such file, no such function, an error in it, an unknown key, a value of a wrong type.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(_no_such_file(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"config {path} is not a Python file: a config is a .py file with get_config()")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except AttributeError as error:
        if not hasattr(module, "get_config"):
            raise InputError(f"config {path} has no function get_config() that returns a Config") from error
        raise InputError(f"config {path} failed: {type(error).__name__}: {error}") from error
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"config {path} failed: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise InputError(f"get_config() of {path} returned a {type(config).__name__}, not a Config")
    for override in overrides:
        config = apply_override(config, override)
    return config


def _no_such_file(path: Path) -> str:
    there = sorted(str(other) for other in path.parent.glob("*.py"))
    near = difflib.get_close_matches(str(path), there, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"in {path.parent} there are: {', '.join(there) or 'none'}"
    return f"no config {path}; {hint}"


def apply_override(config: Any, override: str) -> Any:
    """A copy of `config` with one `key.path=value` applied; the value is read as the field's type.

    >>> from jaxnet.training.optimizer import Optimizer
    >>> apply_override(Optimizer(), "learning_rate=0.5").learning_rate
    0.5
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"override {override!r} is not of the form key=value, such as optimizer.learning_rate=0.1")
    return _replaced(config, key.split("."), key, text, config)


def _replaced(node: Any, path: list[str], key: str, text: str, root: Any) -> Any:
    types = _field_types(node)
    if path[0] not in types:
        raise InputError(_unknown_key(key, root))
    if len(path) > 1:
        child = getattr(node, path[0])
        if not dataclasses.is_dataclass(child):
            raise InputError(_unknown_key(key, root))
        return dataclasses.replace(node, **{path[0]: _replaced(child, path[1:], key, text, root)})
    if dataclasses.is_dataclass(getattr(node, path[0])):
        inner = ", ".join(f"{key}.{name}" for name in _field_types(getattr(node, path[0])))
        raise InputError(f"{key} is a group of keys, not a value; set one of {inner}")
    return dataclasses.replace(node, **{path[0]: parse_value(text, types[path[0]], key)})


def _field_types(node: Any) -> dict[str, Any]:
    """Settable fields of a dataclass with their types. Linen's own `parent` and `name` are not settings."""
    hidden = {"parent", "name"} if hasattr(node, "setup") and hasattr(node, "apply") else set()
    hints = typing.get_type_hints(type(node)) if _has_string_types(node) else {}
    fields = [f for f in dataclasses.fields(node) if f.init and f.name not in hidden]
    return {f.name: hints.get(f.name, f.type) for f in fields}


def _has_string_types(node: Any) -> bool:
    """Whether the class was written under `from __future__ import annotations`."""
    return any(isinstance(f.type, str) for f in dataclasses.fields(node))


def _unknown_key(key: str, root: Any) -> str:
    keys = list(all_keys(root))
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.4)
    # A wrong path with a right last word is the commonest slip of all.
    same_word = [other for other in keys if other.rpartition(".")[2] == key.rpartition(".")[2]]
    guess = (same_word or near)[:1]
    hint = f"did you mean {guess[0]!r}?" if guess else f"there are: {', '.join(keys)}"
    return f"no config key {key!r}; {hint}"


def all_keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Every key path of a config."""
    for name in _field_types(node):
        child = getattr(node, name)
        if dataclasses.is_dataclass(child):
            yield from all_keys(child, f"{prefix}{name}.")
        else:
            yield prefix + name


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Key paths to plain JSON values; a dataclass other than the root also tells its type."""
    flat: dict[str, Any] = {}
    for name in _field_types(node):
        child = getattr(node, name)
        if dataclasses.is_dataclass(child):
            flat[prefix + name] = f"{type(child).__module__}.{type(child).__qualname__}"
            flat |= flatten(child, f"{prefix}{name}.")
        else:
            flat[prefix + name] = _plain(child)
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def to_json(config: Any) -> str:
    """The whole config, one key path a line: what config.json holds."""
    return json.dumps(flatten(config), indent=2) + "\n"


def differences(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """One line for each key path that differs: `optimizer.learning_rate: 0.1 -> 0.2`."""
    keys = dict.fromkeys([*saved, *current])
    show = lambda flat, key: json.dumps(flat[key]) if key in flat else "(absent)"  # noqa: E731
    return [
        f"{key}: {show(saved, key)} -> {show(current, key)}"
        for key in keys
        if saved.get(key, ...) != current.get(key, ...)
    ]
