"""Leaves that a program has and a checkpoint lacks, or the other way round, or that both have in other shapes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
T = TypeVar("T")


class Replaceable(NamedTuple):
    """Leaves that can be made anew where those of a checkpoint do not fit: all of them, or none.

    Attributes:
        under: how their names begin.
        make: a pytree of them, with the names that they have in the state.
    """

    under: str
    make: Callable[[], Any]

    def fit(self, stored: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
        """Whether two descriptions share these leaves."""
        return self.parted(stored)[0] == self.parted(wanted)[0]

    def parted(self, leaves: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """Those of `leaves`, by name, and all others."""
        own = {name: leaf for name, leaf in leaves.items() if name.startswith(self.under)}
        return own, {name: leaf for name, leaf in leaves.items() if name not in own}


def as_stored(stored: Mapping[str, str], wanted: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves to ask a checkpoint for, which holds those that `stored` describes: among `defaults` only those.

    >>> sorted(as_stored({"a": "int32[]", "b": "int32[]"}, {"a": 1, "c": 2}, {"b": np.int32(0), "c": np.int32(0)}))
    ['a', 'b']
    """
    asked = {name: leaf for name, leaf in wanted.items() if name in stored or name not in defaults}
    surplus = {name: np.asarray(value) for name, value in defaults.items() if name in stored and name not in wanted}
    return asked | surplus


def filled(leaf: jax.ShapeDtypeStruct, value: Any) -> jax.Array:
    """An array such as `leaf`, of one value."""
    values = np.full(leaf.shape, value, leaf.dtype)
    if leaf.sharding is None:
        return jax.numpy.asarray(values)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])
