"""Reducers, halves, shards and codecs print as the expression that makes them.

A factory such as `bucketed` is decorated with `expressed`. What it returns then carries the text of the call:

>>> from jaxnet.comm import MiB, all_reduce, bucketed, during, scattered
>>> reducer = during(bucketed(scattered("device", all_reduce("host")), bucket_bytes=25 * MiB))
>>> reducer
during(bucketed(scattered('device', all_reduce('host')), 25 * MiB))

The text evaluates back, in the namespace of `jaxnet.comm`, to a reducer with the same text and the same plan:

>>> import jaxnet.comm
>>> eval(repr(reducer), vars(jaxnet.comm))
during(bucketed(scattered('device', all_reduce('host')), 25 * MiB))
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB


class _Expressible(Protocol):
    """A NamedTuple, or the like, with a field `expression`."""

    def _replace(self, *, expression: str) -> Any: ...


_P = ParamSpec("_P")
_Made = TypeVar("_Made", bound=_Expressible)


def expressed(make: Callable[_P, _Made], name: str | None = None) -> Callable[_P, _Made]:
    """Decorate a factory, so that what it returns prints as the call that made it.

    Arguments equal to their defaults are left out. A function prints as its name, so the text of a reducer that was
    made with a user's function evaluates where that name is known; that of a lambda does not evaluate.

    Args:
        make: returns a value with a field `expression`: a `Reducer`, `Halves`, `Sharded`, `Codec` or `Grouping`.
        name: what the call names; by default the name of `make`.

    >>> from jaxnet.comm import all_reduce
    >>> @expressed
    ... def twice(inner, scale=2.0):
    ...     return inner._replace(reduce=lambda value, state: inner.reduce(scale * value, state))
    >>> twice(all_reduce("host")), twice(all_reduce("host"), 3.0)
    (twice(all_reduce('host')), twice(all_reduce('host'), 3.0))
    """
    signature = inspect.signature(make)
    name = make.__name__ if name is None else name

    @functools.wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> _Made:
        arguments = _arguments(signature, signature.bind(*args, **kwargs).arguments)
        return cast(_Made, make(*args, **kwargs)._replace(expression=f"{name}({', '.join(arguments)})"))

    return made


def default_text(kind: str, function: Callable[..., object]) -> str:
    """The text of a value that carries no expression: its kind, and the function in which it was made.

    >>> def rounded(): return lambda message, state: (message, state)
    >>> default_text("Reducer", rounded())
    '<Reducer of rounded>'
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"<{kind} of {name.split('.<locals>')[0]}>"


def _arguments(signature: inspect.Signature, given: Mapping[str, Any]) -> Iterator[str]:
    """The text of each argument that differs from its default."""
    positional = True
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from (_text(value, name) for value in given.get(name, ()))
        elif name not in given or _is_default(given[name], parameter):
            positional = False  # those that follow need their names
        elif positional and parameter.kind is not parameter.KEYWORD_ONLY:
            yield _text(given[name], name)
        else:
            yield f"{name}={_text(given[name], name)}"


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    default = parameter.default
    if isinstance(value, np.ndarray):  # equals nothing in one word
        return False
    return default is not parameter.empty and (value is default or bool(value == default))


def _text(value: Any, name: str) -> str:
    """Python that evaluates to `value`, the argument called `name`."""
    if name.endswith("bytes") and isinstance(value, int):
        return _bytes_text(value)
    if inspect.isroutine(value):
        return value.__name__
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, np.ndarray):
        return repr(value.tolist())
    if type(value) in (tuple, list):
        return _sequence_text(value, name)
    return repr(value)


def _bytes_text(count: int) -> str:
    for unit, size in (("MiB", MiB), ("KiB", KiB)):
        if count > 0 and count % size == 0:
            return f"{count // size} * {unit}"
    return repr(count)


def _sequence_text(values: Sequence[Any], name: str) -> str:
    inside = ", ".join(_text(value, name) for value in values)
    if isinstance(values, list):
        return f"[{inside}]"
    return f"({inside},)" if len(values) == 1 else f"({inside})"
