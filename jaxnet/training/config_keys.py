"""A config as key paths: their types, their values, and the same as JSON."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
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
    """A type written as a string, as `from __future__ import annotations` makes all; Any if it cannot be found."""
    if not isinstance(kind, str):
        return kind
    for base in owner.__mro__:
        try:
            return eval(kind, vars(sys.modules[base.__module__]))
        except Exception:  # imported for type checkers alone, or inherited from another module
            continue
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
    return {
        key: f"{type(value).__module__}.{type(value).__qualname__}" if is_group(value) else _plain(value)
        for key, value, _ in key_values(config)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))  # else a function would be another one in each process


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
