"""A config as key paths: their types, their values, and the same as JSON."""

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from jaxnet.comm import Strategy
from jaxnet.errors import InputError, shown, users_code
from jaxnet.limits import broken_limit, without_limits

# ---- Reading a value from the command line as the type that a config field declares -------------------


_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


def parse_value(text: str, kind: Any, key: str) -> Any:
    """`text` as a value of type `kind`.

    Knows bool, int, float, str, None, Literal, tuples of those (`8,16,32`), tuples of such tuples (`head:10,body:0`)
    and unions.

    Raises:
        InputError: naming the key, what was got and what was wanted.

    >>> parse_value("1e-3", float, "lr"), parse_value("none", float | None, "lr")
    (0.001, None)
    >>> parse_value("8,16", tuple[int, ...], "widths")
    (8, 16)
    >>> parse_value("0:128,6:160", tuple[tuple[float, int], ...], "resolutions")
    ((0.0, 128), (6.0, 160))
    """
    try:
        return _parse(text, kind)
    except ValueError:
        raise InputError(f"{key}={text}: wanted {describe(kind)}, got {text!r}") from None
    except TypeError:
        raise InputError(f"{key}={text}: only the config file can set this; edit it, or write another") from None


def _parse(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _parse_union(text, typing.get_args(kind))
    if origin is Literal:
        return _parse_choice(text, typing.get_args(kind))
    if origin is tuple:
        parts = [part.strip() for part in _inside(text, kind).split(",") if part.strip()]
        parts = [part.replace(":", ",") for part in parts] if _nests(kind) else parts
        return tuple(_parse(part, item) for part, item in zip(parts, _items(kind, len(parts)), strict=True))
    if kind is type(None):
        return _parse_none(text)
    if kind is bool:
        return _parse_bool(text)
    if kind is float:
        return _parse_float(text)
    if kind in (int, str):
        return kind(text)
    raise TypeError(kind)


def _inside(text: str, kind: Any) -> str:
    """A tuple without the brackets around it; square ones are of the text where items may be text, such as [cd]*."""
    pairs = ("()",) if _holds_text(kind) else ("()", "[]")
    return text[1:-1] if text[:1] + text[-1:] in pairs else text


def _holds_text(kind: Any) -> bool:
    return kind is str or any(_holds_text(item) for item in typing.get_args(kind))


def _nests(kind: Any) -> bool:
    """Whether a tuple's items are tuples."""
    return any(typing.get_origin(item) is tuple for item in typing.get_args(kind))


def _items(kind: Any, length: int) -> tuple[Any, ...]:
    """The type of each item of a tuple: `tuple[int, ...]` has any length, `tuple[int, int]` its own."""
    items = typing.get_args(kind)
    return items[:1] * length if items[1:] == (...,) else items


def _parse_union(text: str, kinds: tuple[Any, ...]) -> Any:
    failures: list[Exception] = []
    for kind in sorted(kinds, key=lambda kind: kind is str):  # a string takes anything, so it comes last
        try:
            return _parse(text, kind)
        except (ValueError, TypeError) as error:
            failures.append(error)
    raise failures[0]


def _parse_choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if text == str(choice):
            return choice
    raise ValueError(text)


def _parse_none(text: str) -> None:
    if text.lower() not in {"none", "null"}:
        raise ValueError(text)


def _parse_bool(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def conforms(value: Any, kind: Any) -> bool:
    """Whether a value that a Python file gave is of type `kind`; what is not of a known type passes.

    Known are those of `parse_value`, and dataclasses.

    >>> conforms(3, float), conforms(3.0, int), conforms([8, 16], tuple[int, ...])
    (True, False, False)
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(conforms(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str | int) and value in parts
    if origin is tuple:
        items = _items(kind, len(value)) if isinstance(value, tuple) else None
        return items is not None and len(items) == len(value) and all(map(conforms, value, items))
    if kind is float:
        return conforms(value, int) or (isinstance(value, float | np.floating) and math.isfinite(value))
    if kind is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind in (bool, str, type(None)) or (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return isinstance(value, kind)
    return True


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None)
    'an integer or none'
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(describe(part) for part in parts)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in parts)
    if origin is tuple and _nests(kind):
        return f"a comma-separated tuple, each {':'.join(map(describe, typing.get_args(parts[0])))}"
    if origin is tuple and parts[1:] == (...,):
        return f"a comma-separated tuple, each {describe(parts[0])}"
    if origin is tuple:
        return f"a comma-separated tuple of {len(parts)}: {', '.join(map(describe, parts))}"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def is_group(value: Any) -> bool:
    """Whether a value of a config has keys of its own; a strategy has none, and shows as its expression."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Strategy)


def field_types(node: Any) -> dict[str, Any]:
    """Settable fields of a dataclass with their types. Linen's own `parent` and `name` are not settings."""
    return {name: without_limits(kind) for name, kind in _declared(node).items()}


def _declared(node: Any) -> dict[str, Any]:
    """The same types with their limits."""
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
            return typing.get_type_hints(field, vars(sys.modules[base.__module__]), include_extras=True)["type"]
    return Any


def all_keys(node: Any) -> Iterator[str]:
    """Every key path of a config."""
    return (key for key, value, _ in key_values(node) if not is_group(value))


def key_values(node: Any, prefix: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Every key path of a config and of its groups, with the value and the type.

    Raises:
        InputError: a group holds itself, one that is `above` it, or nothing at all.
    """
    above = (*above, node)
    for name, kind in field_types(node).items():
        with users_code(f"{prefix}{name}"):
            child = getattr(node, name)
        yield prefix + name, child, kind
        if is_group(child):
            if any(child is other for other in above):
                raise InputError(f"{prefix}{name}: this {type(child).__name__} holds itself; wanted a value that ends")
            yield from key_values(child, f"{prefix}{name}.", above)


def check_types(config: Any) -> None:
    """Refuse a value that is not of the type that its field declares, naming the key."""
    for key, value, kind in key_values(config):
        if not conforms(value, kind):
            raise InputError(f"{key} is {shown(value)}, wanted {describe(kind)}")


def broken_limits(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every key path whose value is beyond the limits of its field, with the value and what was wanted."""
    for name, kind in _declared(node).items():
        child = getattr(node, name)
        if is_group(child):
            yield from broken_limits(child, f"{prefix}{name}.")
        elif (wanted := broken_limit(kind, child)) is not None:
            yield prefix + name, child, wanted


def flatten(config: Any) -> dict[str, Any]:
    """Key paths to plain JSON values; of a group, its type.

    Raises:
        InputError: a value of the user's own cannot be shown, so a run that is continued could not be compared.
    """
    flat = {}
    for key, value, _ in key_values(config):
        with users_code(f"{key}: what shows this {type(value).__name__}"):
            flat[key] = _shown(value)
    return flat


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
    if isinstance(value, np.integer | np.floating):
        return value.item()
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
        if class_name(saved.get(key, ...)) != class_name(current.get(key, ...))
    ]


_OF_PICTURES = ("pixels", "augmentation", "mixing", "resolutions", "label_smoothing")


def in_todays_keys(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a run saved, by the keys of today: before there were tasks, those of images were the config's own.

    >>> in_todays_keys({"label_smoothing": 0.1, "pixels.mean": [0.5]})["task.pixels.mean"]
    [0.5]
    """
    if "task" in saved:
        return dict(saved)
    renamed = {f"task.{key}" if key.partition(".")[0] in _OF_PICTURES else key: saved[key] for key in saved}
    return {**renamed, "task": "jaxnet.tasks.classification.ImageClassification"}


def class_name(value: Any) -> Any:
    """A class of jaxnet by its name alone, without its module, which may have been another when it was saved.

    Any other value is itself.

    >>> class_name("jaxnet.training.loss.Pixels"), class_name("mine.Pixels"), class_name(3)
    ('Pixels', 'mine.Pixels', 3)
    """
    ours = isinstance(value, str) and value.startswith("jaxnet.") and value.replace(".", "_").isidentifier()
    return value.rpartition(".")[2] if ours else value
