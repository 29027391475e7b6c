"""A pytree as named leaves, so that what is on disk does not depend on the containers of its program."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import jax


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` in its own order, by path: dict keys, field names and indices joined by '/'.

    >>> named_leaves({'params': {'kernel': 1.0}, 'opt': (2.0, 3.0)})
    {'opt/0': 2.0, 'opt/1': 3.0, 'params/kernel': 1.0}
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_word(entry) for entry in path): leaf for path, leaf in paths}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Named leaves as nested dicts: the one container that every reader of a checkpoint knows.

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


def described(leaves: Mapping[str, Any]) -> dict[str, str]:
    """The dtype and the shape of each leaf, as in 'float32[64, 10]'."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def differences(got: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """One phrase for each leaf that two descriptions do not share.

    >>> differences({'a': 'float32[2]', 'b': 'int32[]'}, {'a': 'float32[3]', 'c': 'int32[]'})
    ['a is float32[2], not float32[3]', 'b (int32[]) is not wanted', 'c (int32[]) is absent']
    """
    changed = [f"{n} is {got[n]}, not {wanted[n]}" for n in got if n in wanted and got[n] != wanted[n]]
    surplus = [f"{n} ({got[n]}) is not wanted" for n in got if n not in wanted]
    absent = [f"{n} ({wanted[n]}) is absent" for n in wanted if n not in got]
    return changed + surplus + absent


def _word(entry: Any) -> str:
    # Orbax joins words with '.' and takes {'a.b': x} and {'a': {'b': y}} for the same leaf: one silently
    # replaces the other.
    return quote(jax.tree_util.keystr((entry,), simple=True), safe=" ").replace(".", "%2E") or "%"
