"""Reading a value from the command line as the type that a config field declares."""

import math
import types
import typing
from typing import Any, Literal

from jaxnet.errors import InputError

_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


def parse_value(text: str, kind: Any, key: str) -> Any:
    """`text` as a value of type `kind`.

    Knows bool, int, float, str, None, Literal, tuples of those (`8,16,32`) and unions.

    Raises:
        InputError: naming the key, what was got and what was wanted.

    >>> parse_value("1e-3", float, "lr"), parse_value("none", float | None, "lr")
    (0.001, None)
    >>> parse_value("8,16", tuple[int, ...], "widths")
    (8, 16)
    """
    try:
        return _parse(text, kind)
    except (ValueError, TypeError):
        raise InputError(f"{key}={text}: wanted {describe(kind)}, got {text!r}") from None


def _parse(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _parse_union(text, typing.get_args(kind))
    if origin is Literal:
        return _parse_choice(text, typing.get_args(kind))
    if origin is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_parse(part.strip(), item) for part in text.strip("()[]").split(",") if part.strip())
    if kind is type(None):
        return _parse_none(text)
    if kind is bool:
        return _parse_bool(text)
    if kind is float:
        return _parse_float(text)
    if kind in (int, str):
        return kind(text)
    raise TypeError(kind)


def _parse_union(text: str, kinds: tuple[Any, ...]) -> Any:
    for kind in sorted(kinds, key=lambda kind: kind is str):  # a string takes anything, so it comes last
        try:
            return _parse(text, kind)
        except ValueError:
            continue
    raise ValueError(text)


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


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None)
    'an integer or none'
    """
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(describe(part) for part in typing.get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(kind))
    if origin is tuple:
        return f"a comma-separated list, each {describe(typing.get_args(kind)[0])}"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return words.get(kind, "a value that only the config file can set: edit it or write another config")
