"""A config as key paths: their types, their values, and the same as JSON."""

import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any


def is_group(value: Any) -> bool:
    """Whether a value of a config has keys of its own."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def field_types(node: Any) -> dict[str, Any]:
    """Settable fields of a dataclass with their types. Linen's own `parent` and `name` are not settings."""
    hidden = {"parent", "name"} if hasattr(node, "setup") and hasattr(node, "apply") else set()
    fields = [field for field in dataclasses.fields(node) if field.init and field.name not in hidden]
    return {field.name: _resolved(field.type, type(node)) for field in fields}


def _resolved(kind: Any, owner: type) -> Any:
    """A type written as a string, as `from __future__ import annotations` makes all; Any if it cannot be found.

    Such strings are code, and come from classes alone, which are code that has run; never from a file that is read.
    """
    if not isinstance(kind, str):
        return kind
    field = types.SimpleNamespace(__annotations__={"type": kind})
    for base in owner.__mro__:
        with suppress(Exception):  # imported for type checkers alone, or inherited from another module
            return typing.get_type_hints(field, vars(sys.modules[base.__module__]))["type"]
    return Any


def all_keys(node: Any) -> Iterator[str]:
    """Every key path of a config."""
    return (key for key, value, _ in key_values(node) if not is_group(value))


def key_values(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every key path of a config and of its groups, with the value and the type."""
    for name, kind in field_types(node).items():
        child = getattr(node, name)
        yield prefix + name, child, kind
        if is_group(child):
            yield from key_values(child, f"{prefix}{name}.")


def flatten(config: Any) -> dict[str, Any]:
    """Key paths to plain JSON values; of a group, its type."""
    return {key: _shown(value) for key, value, _ in key_values(config)}


def _shown(value: Any) -> Any:
    return f"{type(value).__module__}.{type(value).__qualname__}" if is_group(value) else _plain(value)


def is_plain(value: Any) -> bool:
    """Whether JSON holds the value as it is, a tuple as a list."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_plain(item) for item in value]
    if is_plain(value):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))  # else a function would be another one in each process


def to_json(config: Any) -> str:
    """The whole config, one key path a line: what config.json holds."""
    return json.dumps(flatten(config), indent=2) + "\n"


def default_values(config: Any) -> dict[str, Any]:
    """As `flatten`, the value that each key has in a config that does not mention it; keys without one are left out."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name not in field_types(config):
            continue
        if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
            made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            values |= {field.name: _shown(made)}
            values |= {f"{field.name}.{key}": value for key, value in (flatten(made) if is_group(made) else {}).items()}
        if is_group(child := getattr(config, field.name)):
            values |= {f"{field.name}.{key}": value for key, value in default_values(child).items()}
    return values


def differences(
    saved: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """One line for each key path that differs: `optimizer.learning_rate: 0.1 -> 0.2`.

    A key that `saved` lacks, because it is newer than the run, had the value that it has in `defaults`.
    """
    newer = {key: value for key, value in (defaults or {}).items() if key in current and key not in saved}
    saved = {**saved, **newer}
    keys = dict.fromkeys([*saved, *current])
    show = lambda flat, key: json.dumps(flat[key]) if key in flat else "(absent)"  # noqa: E731
    return [
        f"{key}: {show(saved, key)} -> {show(current, key)}"
        for key in keys
        if saved.get(key, ...) != current.get(key, ...)
    ]
