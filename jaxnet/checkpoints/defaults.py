"""Leaves that a program has and an older checkpoint lacks, or the other way round."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


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
