"""Weights from a file in place of random ones: where a run begins that continues somebody else's training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnet.errors import InputError
from jaxnet.models import Variables
from jaxnet.weights import file_digest, read_names, read_variables

_COLOURS = 3
_SHOWN = 3  # names in a message


def initial_values(path: Path, shapes: Variables) -> dict[str, np.ndarray]:
    """The variables of a file of `jaxnet import`, as they fit a model whose variables have these shapes.

    Variables that the import left out, such as those of a new head, are not among them. Where the model takes grey
    images and the file's network colours, the first kernel is summed over its colours, which is what that network
    computes of a grey image in all three.

    Raises:
        InputError: the file cannot be read, or belongs to another network; the message names the variables.
    """
    given, about = read_variables(path)
    wanted = {name: leaf.shape for name, leaf in _named(shapes).items()}
    values = {name: _of_shape(value, wanted.get(name)) for name, value in given.items()}
    others = [f"{name} is not in the model" for name in values if name not in wanted]
    others += [f"{name} is not in the file" for name in wanted if name not in {*values, *about.left_out}]
    others += [
        f"{name} is {list(value.shape)}, and {list(wanted[name])} in the model"
        for name, value in values.items()
        if name in wanted and value.shape != wanted[name]
    ]
    if others:
        more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise InputError(
            f"initial_weights={path}: weights of {about.model} with {about.num_classes} classes do not fit this model: "
            f"{'; '.join(others[:_SHOWN])}{more}. For another number of classes, import them with "
            "--new-head"
        )
    return values


def initial_text(path: Path, shapes: Variables) -> str:
    """What of a model a file of `jaxnet import` begins, and what begins at random, as a line for a person."""
    given, about = read_names(path)
    fresh = [name for name in _named(shapes) if name not in given]
    shown = ", ".join(fresh[:_SHOWN]) + (f" and {len(fresh) - _SHOWN} more" if len(fresh) > _SHOWN else "")
    rest = f"; at random, because the import left them out: {shown}" if fresh else ""
    return f"{len(given)} variables begin as those of {about.model} in {path} (from {about.source_file}){rest}"


def with_values(variables: Variables, values: Mapping[str, jax.Array]) -> Variables:
    """The variables with those values in the place of their own, in every member of an ensemble; to be traced.

    >>> with_values(Variables({"fc": {"bias": jnp.zeros(2)}}, {}), {"params/fc/bias": jnp.ones(2)}).params
    {'fc': {'bias': Array([1., 1.], dtype=float32)}}
    """
    if not values:
        return variables
    paths, structure = jax.tree.flatten_with_path({"params": variables.params, **variables.stats})
    # A copy, because the state is donated and the caller's arrays may be the memory of a file.
    leaves = [
        jnp.copy(jnp.broadcast_to(values[name], leaf.shape)) if (name := _name(path)) in values else leaf
        for path, leaf in paths
    ]
    tree = jax.tree.unflatten(structure, leaves)
    return Variables(tree.pop("params"), tree)


def weights_digest(path: str) -> str:
    """The digest of a file of weights, or what keeps it from being read: to be compared across processes."""
    try:
        return file_digest(Path(path))[:16]
    except OSError as error:
        return error.strerror or str(error)


def _named(variables: Variables) -> dict[str, Any]:
    paths, _ = jax.tree.flatten_with_path({"params": variables.params, **variables.stats})
    return {_name(path): leaf for path, leaf in paths}


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _of_shape(value: np.ndarray, wanted: tuple[int, ...] | None) -> np.ndarray:
    grey = wanted is not None and len(wanted) == value.ndim == 4 and (value.shape[2], wanted[2]) == (_COLOURS, 1)
    return value.sum(2, keepdims=True) if grey else value
