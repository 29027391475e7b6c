"""A training state as named leaves, so that a checkpoint does not depend on the containers of a program.

A state is a pytree: NamedTuples, dicts, optimizer states. A checkpoint stores it as nested dicts of arrays, and its
manifest describes every leaf as `dtype[shape]`. Comparing two descriptions shows, before any array is read, whether a
checkpoint fits a program.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import jax
import numpy as np

NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
T = TypeVar("T")

# ---- Names ----------------------------------------------------------------------------------------------


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of `tree` in its own order, by path: dict keys, field names and indices joined by '/'.

    >>> named_leaves({'params': {'kernel': 1.0}, 'opt': (2.0, 3.0)})
    {'opt/0': 2.0, 'opt/1': 3.0, 'params/kernel': 1.0}
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_word(entry) for entry in path): leaf for path, leaf in paths}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return named leaves as nested dicts, a container that every reader of a checkpoint knows.

    >>> nested({'opt/0': 2.0, 'params/kernel': 1.0})
    {'opt': {'0': 2.0}, 'params': {'kernel': 1.0}}
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for word in parents:
            node = node.setdefault(word, {})
        node[last] = leaf
    return tree


def _word(entry: Any) -> str:
    # Orbax joins words with '.' and takes {'a.b': x} and {'a': {'b': y}} for the same leaf: one silently
    # replaces the other. So dots are quoted.
    return quote(jax.tree_util.keystr((entry,), simple=True), safe=" ").replace(".", "%2E") or "%"


def spoken(name: str) -> str:
    """Return the name of an array as its author wrote it, from that of `named_leaves`, which quotes.

    >>> spoken("about/shoe%2Esize")
    'about/shoe.size'
    """
    return "/".join(map(_unquoted, name.split("/")))


def by_name(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `named_leaves` made a name for, as a task reads it: nested dicts with the names of their author.

    >>> by_name({"about/shoe%2Esize": 44, "gr%C3%B6%C3%9Fe": 180})
    {'about': {'shoe.size': 44}, 'größe': 180}
    """

    def of(tree: dict[str, Any]) -> dict[str, Any]:
        return {_unquoted(word): of(inner) if isinstance(inner, dict) else inner for word, inner in tree.items()}

    return of(nested(leaves))


def _unquoted(word: str) -> str:
    return "" if word == "%" else unquote(word)


# ---- Comparison -----------------------------------------------------------------------------------------


def described(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtype and shape of each leaf, as in 'float32[64, 10]'."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def shapes_of(description: Mapping[str, str]) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of which `described` has made a description; ValueError if it has not.

    >>> shapes_of({'a': 'float32[2,3]', 'b': 'int32[]'})
    {'a': ShapeDtypeStruct(shape=(2, 3), dtype=float32), 'b': ShapeDtypeStruct(shape=(), dtype=int32)}
    """

    def of(text: str) -> jax.ShapeDtypeStruct:
        dtype, _, rest = text.partition("[")
        sizes = tuple(int(size) for size in rest.removesuffix("]").split(",") if size)
        return jax.ShapeDtypeStruct(sizes, np.dtype(dtype))

    return {name: of(text) for name, text in description.items()}


def differences(got: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return one phrase for each leaf in which two descriptions differ.

    >>> differences({'a': 'float32[2]', 'b': 'int32[]'}, {'a': 'float32[3]', 'c': 'int32[]'})
    ['a is float32[2], not float32[3]', 'b (int32[]) is not wanted', 'c (int32[]) is absent']
    """
    changed = [f"{n} is {got[n]}, not {wanted[n]}" for n in got if n in wanted and got[n] != wanted[n]]
    surplus = [f"{n} ({got[n]}) is not wanted" for n in got if n not in wanted]
    absent = [f"{n} ({wanted[n]}) is absent" for n in wanted if n not in got]
    return changed + surplus + absent


def differences_text(got: Mapping[str, str], wanted: Mapping[str, str], most: int = 5) -> str:
    """Return the first differences as one phrase, with the number of the others; "" where there are none.

    >>> differences_text({'a': 'int32[]', 'b': 'int32[]'}, {}, most=1)
    'a (int32[]) is not wanted; and 1 more'
    """
    found = differences(got, wanted)
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + more


# ---- Leaves that may differ -----------------------------------------------------------------------------


class Replaceable(NamedTuple):
    """Leaves that a restore makes anew, all of them, where those of the checkpoint do not fit.

    Attributes:
        under: the prefix of their names.
        make: returns a pytree of them, with the names that they have in the state.
        same: whether those that were saved with this `extra` mean the same: shapes alone do not tell.
    """

    under: str
    make: Callable[[], Any]
    same: Callable[[Mapping[str, Any]], bool] = lambda extra: True

    def fit(self, stored: Mapping[str, str], wanted: Mapping[str, str], extra: Mapping[str, Any]) -> bool:
        """Return whether two descriptions agree on these leaves, and those saved with `extra` mean the same."""
        own = self.split(stored)[0]
        return own == self.split(wanted)[0] and (not own or self.same(extra))

    def split(self, leaves: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """Return the replaceable ones of `leaves`, by name, and the others."""
        own = {name: leaf for name, leaf in leaves.items() if f"{name}/".startswith(self.under)}  # 'comm' is in 'comm/'
        return own, {name: leaf for name, leaf in leaves.items() if name not in own}


def leaves_to_read(stored: Mapping[str, str], wanted: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves to read from a checkpoint whose leaves `stored` describes.

    A leaf with a default may be absent from the checkpoint. It may also be stored and not wanted: then it is in the
    result, so that comparing with `stored` finds no difference.

    >>> stored, wanted = {"a": "int32[]", "b": "int32[]"}, {"a": 1, "c": 2}
    >>> sorted(leaves_to_read(stored, wanted, defaults={"b": np.int32(0), "c": np.int32(0)}))
    ['a', 'b']
    """
    asked = {name: leaf for name, leaf in wanted.items() if name in stored or name not in defaults}
    surplus = {name: np.asarray(value) for name, value in defaults.items() if name in stored and name not in wanted}
    return asked | surplus


def filled(leaf: jax.ShapeDtypeStruct | np.ndarray, value: Any) -> jax.Array | np.ndarray:
    """Return an array like `leaf` in which every element is `value`."""
    values = np.full(leaf.shape, value, leaf.dtype)
    return values if isinstance(leaf, np.ndarray) else placed(values, leaf)


def placed(array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Return the array in the sharding of `like`, whose devices may be of several processes."""
    if like.sharding is None:
        return jax.numpy.asarray(array)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: array[index])
