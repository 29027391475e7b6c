"""What was measured of models on hosts, kept in a file, so that it need not be measured again.

    {"dense, batch 16, 2 x 1 cpu devices, 2 processes, ...": {"forward": 0.05, "ready": [...], "curves": [...], ...}}

The file has an entry for each model, mesh, processor, version of JAX and form of an entry: `key_of`. One that fits none
of them is not used, and stays in the file.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxnet.cost.choice import described
from jaxnet.cost.fit import Curve, Line
from jaxnet.cost.prediction import Parts
from jaxnet.cost.workloads import Workload
from jaxnet.errors import InputError, error_text
from jaxnet.files import read_object, record_of, replace

_FORM = "form 5"  # of an entry; one of another form is not used, and stays in the file


class _Way(NamedTuple):
    """Times of one kind of collective over some axes; medians by bytes."""

    kind: str
    axes: Sequence[str]
    medians: dict[str, float]
    line: Line


class _Kept(NamedTuple):
    """`Parts` as JSON carries it."""

    forward: float
    ready: Sequence[float]
    gradients: float
    step: float
    curves: Sequence[_Way]
    share: float
    launch: float
    packing: float
    unhidden: dict[str, float]
    beyond: float = 0.0  # of older records: it was not learned


def key_of(workload: Workload) -> str:
    """What a measurement depends on, in words: the model and its batch, the mesh, the processor, the version of JAX.

    Of the model a digest stands for its shapes, those of its examples, and its settings.
    """
    leaves = [*workload.shapes, *jax.tree.leaves(workload.global_batch)]
    model = repr([(leaf.shape, str(leaf.dtype)) for leaf in leaves]) + workload.settings
    return ", ".join(
        [
            f"{workload.name} of {hashlib.sha256(model.encode()).hexdigest()[:8]}",
            f"batch {workload.batch}",
            described(workload.mesh),
            f"{len(os.sched_getaffinity(0))} cores of {_processor()}",
            f"JAX {importlib.metadata.version('jax')}",
            _FORM,
        ]
    )


def read_profile(path: Path, key: str) -> Parts | None:
    """What a file has of `key`; None: nothing, or there is no file.

    Raises:
        InputError: it is no such file.
    """
    entry = _entries(path).get(key)
    if entry is None:
        return None
    try:
        return as_parts(entry)
    except ValueError as error:
        raise _unusable(path, f"of {key!r} {error}") from error


def write_profile(path: Path, key: str, parts: Parts) -> None:
    """Keep what was measured of `key` in a file; what it has of others stays.

    Raises:
        InputError: it is no such file, or cannot be written.
    """
    entries = _entries(path) | {key: as_json(parts)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(entries, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"--profile {path} cannot be written: {error.strerror}") from error


def as_json(parts: Parts) -> dict[str, Any]:
    """Parts as plain values."""
    curves = [
        {"kind": kind, "axes": list(axes), "medians": {str(size): each for size, each in curve.medians.items()}}
        | {"line": curve.line._asdict()}
        for (kind, axes), curve in parts.curves.items()
    ]
    return parts._asdict() | {"ready": list(parts.ready), "curves": curves, "unhidden": dict(parts.unhidden)}


def as_parts(said: object) -> Parts:
    """Parts from plain values; ValueError: what is missing, of another type, or can be no measurement."""
    kept = record_of(_Kept, said)
    if empty := [way.kind for way in kept.curves if not way.medians]:
        raise ValueError(f"its {empty[0]} has no medians")
    if zero := [way.kind for way in kept.curves if 0 in way.medians.values()]:
        raise ValueError(f"its {zero[0]} took no time")
    if not 0 <= kept.share < 1:
        raise ValueError(f"its share is {kept.share}, wanted a number from 0 to below 1")
    for name, value in _seconds(kept):
        if not 0 <= value < math.inf:
            raise ValueError(f"its {name} is {value}, wanted a number of 0 or more")
    curves = {(way.kind, tuple(way.axes)): Curve(_by_bytes(way), way.line) for way in kept.curves}
    return Parts(**kept._asdict() | {"ready": tuple(kept.ready), "curves": curves})


def _by_bytes(way: _Way) -> dict[int, float]:
    """Medians by bytes, the smallest first; whoever sorts the keys of a file sorts them as text."""
    if odd := [size for size in way.medians if not (size.isascii() and size.isdecimal())]:
        raise ValueError(f"its {way.kind} has a median of {odd[0]!r}, wanted a number of bytes")
    return dict(sorted((int(size), each) for size, each in way.medians.items()))


def _seconds(kept: _Kept) -> Iterator[tuple[str, float]]:
    """All times of an entry, by name, and what else is 0 or more."""
    yield from ((name, getattr(kept, name)) for name in ("forward", "gradients", "step", "launch", "packing", "beyond"))
    yield from (("ready", each) for each in kept.ready)
    yield from kept.unhidden.items()
    for way in kept.curves:
        yield from ((way.kind, each) for each in (*way.medians.values(), way.line.latency, way.line.per_byte))


def _entries(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unusable(path, error_text(error)) from error


def _unusable(path: Path, why: str) -> InputError:
    return InputError(f"--profile {path} is no file of `jaxnet tune --profile`: {why}; delete it, or give another name")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
