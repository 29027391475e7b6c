"""Weights in place of random ones: where a run begins that continues another one, or somebody else's training."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxnet.checkpoints import find_checkpoint, read_leaves, steps_at
from jaxnet.checkpoints.leaves import named_leaves
from jaxnet.errors import InputError
from jaxnet.files import is_directory
from jaxnet.models import Variables
from jaxnet.object_storage.reading import fetched_steps
from jaxnet.object_storage.store import remote_url
from jaxnet.parallel.state import wide_dtype
from jaxnet.weights import file_digest, read_names, read_variables

_COLOURS = 3
_SHOWN = 3  # names in a message


def initial_values(path: Path, shapes: Variables) -> dict[str, np.ndarray]:
    """The variables of a run or of a file of `jaxnet import`, as they fit a model whose variables have these shapes.

    Of a run, or of one of its checkpoints, they are what it evaluates: the averaged parameters if there are any.

    Variables that an import left out, such as those of a new head, are not among them. Where the model takes grey
    images and the file's network colours, the first kernel is summed over its colours, which is what that network
    computes of a grey image in all three.

    Raises:
        InputError: they cannot be read, or belong to another network; the message names the variables.
    """
    path = fetched_steps(path)
    if is_directory(path):
        return _of_run(path, _named(shapes))
    if not path.exists():
        raise InputError(
            f"initial_weights={path}: there is no such file or directory; wanted the workdir of a run, one of its "
            "checkpoints, or a file of `jaxnet import`"
        )
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


def _of_run(path: Path, shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    found = find_checkpoint(*steps_at(path))
    saved = saved_names(shapes, found.leaves)
    # As NumPy arrays, which are the same on all processes; these take no memory.
    like = {
        saved[name]: np.broadcast_to(np.zeros((), saved_dtype(saved[name], of.dtype, found.leaves)), of.shape)
        for name, of in shapes.items()
    }
    try:
        leaves = read_leaves(found, like)
    except InputError as error:
        raise InputError(f"initial_weights={path}: {error}") from error
    return {name: leaves[saved[name]].astype(of.dtype, copy=False) for name, of in shapes.items()}


def saved_names(names: Iterable[str], leaves: Iterable[str]) -> dict[str, str]:
    """The leaf of a saved state that holds each variable as it is evaluated: the averaged one if there are any.

    >>> saved_names(["params/fc/bias", "batch_stats/mean"], ["params/fc/bias", "average/fc/bias"])
    {'params/fc/bias': 'average/fc/bias', 'batch_stats/mean': 'stats/batch_stats/mean'}
    """
    params = "average/" if any(name.startswith("average/") for name in leaves) else "params/"
    return {
        name: params + name.removeprefix("params/") if name.startswith("params/") else f"stats/{name}" for name in names
    }


def saved_dtype(saved: str, dtype: Any, leaves: Mapping[str, str]) -> Any:
    """The dtype in which a leaf of a saved state, of which all are `described`, is read for a variable of this one.

    It is the variable's own, but for averages of parameters of 16 bits: those of older runs alone have it.

    >>> saved_dtype("average/w", "bfloat16", {"average/w": "float32[2]"}).name
    'float32'
    """
    kept = wide_dtype(dtype)
    in_average = saved.startswith("average/") and leaves.get(saved, "").partition("[")[0] == kept.name
    return kept if in_average else dtype


def initial_text(path: Path, shapes: Variables) -> str:
    """What of a model a run or a file of `jaxnet import` begins, and what begins at random, as a line for a person."""
    local = fetched_steps(path)
    if is_directory(local):
        found = find_checkpoint(*steps_at(local))
        where = found.path if local == path else f"{remote_url(path)}, step {found.step}"
        return f"{len(_named(shapes))} variables begin as those of {where}"
    given, about = read_names(path)
    fresh = [name for name in _named(shapes) if name not in given]
    shown = ", ".join(fresh[:_SHOWN]) + (f" and {len(fresh) - _SHOWN} more" if len(fresh) > _SHOWN else "")
    rest = f"; at random, because the import left them out: {shown}" if fresh else ""
    return f"{len(given)} variables begin as those of {about.model} in {path} (from {about.source_file}){rest}"


def weights_digest(path: str) -> str:
    """The digest of the weights that a run begins with, or what keeps them from being read: the same on all processes.

    That of a checkpoint is the digest of its manifest, which has those of all its files.
    """
    try:
        local = fetched_steps(path)
        if is_directory(local):
            found = find_checkpoint(*steps_at(local))
            return hashlib.sha256((found.path / "manifest.json").read_bytes()).hexdigest()[:16]
        return file_digest(local)[:16]
    except InputError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


def _named(variables: Variables) -> dict[str, Any]:
    return named_leaves({"params": variables.params, **variables.stats})


def _of_shape(value: np.ndarray, wanted: tuple[int, ...] | None) -> np.ndarray:
    grey = wanted is not None and len(wanted) == value.ndim == 4 and (value.shape[2], wanted[2]) == (_COLOURS, 1)
    return value.sum(2, keepdims=True) if grey else value
