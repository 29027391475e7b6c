"""Variables of a Flax model in one safetensors file: flat names, and what they are of in the metadata."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy

from jaxnet.errors import InputError
from jaxnet.weights.files import read_safetensors, unreadable


class About(NamedTuple):
    """What the variables of a file are of.

    Attributes:
        model: its name in the zoo.
        num_classes: that it tells apart.
        source: whose names the file had that they come from.
        source_file: that file's name.
        source_sha256: that file's digest.
        left_out: variables of the model that are not in the file, as those of a new head.
        mean: of the pixels, scaled to [0, 1], that the weights want; one number, or one a channel. None: as is usual
            for the model. Neither this nor `std` is checked here.
        std: their standard deviation, likewise.
    """

    model: str
    num_classes: int
    source: str
    source_file: str
    source_sha256: str
    left_out: Sequence[str] = ()
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None


def open_to_others(path: Path) -> None:
    """Give a file the mode of any new one; safetensors lets nobody else read its own."""
    mask = os.umask(0o077)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_variables(path: Path, variables: Mapping[str, np.ndarray], about: About) -> None:
    """Write the file, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    metadata = {"about": json.dumps(about._asdict())}
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            safetensors.numpy.save_file(dict(variables), staged, metadata)
            open_to_others(staged)
            with staged.open("rb") as stream:
                os.fsync(stream.fileno())
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"variables cannot be written to {path}: {reason}") from error


def read_variables(path: Path) -> tuple[dict[str, np.ndarray], About]:
    """The variables of a file that `write_variables` wrote, by flat name, and what they are of.

    Raises:
        InputError: there is no such file, or it is another.
    """
    try:
        variables, metadata = read_safetensors(path)
    except OSError as error:
        raise InputError(f"{unreadable(path, error)}; `jaxnet import` writes such a file") from error
    return variables, _about(path, metadata)


def read_names(path: Path) -> tuple[list[str], About]:
    """The names alone of the variables of such a file, and what they are of; of a file that was read before."""
    with safetensors.safe_open(path, framework="np") as file:
        return list(file.keys()), _about(path, file.metadata() or {})


def _about(path: Path, metadata: Mapping[str, str]) -> About:
    try:
        return About(**json.loads(metadata["about"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not hold variables of jaxnet; make such a file from it: jaxnet import --from safetensors "
            f"{path} --model NAME --out FILE"
        ) from error
