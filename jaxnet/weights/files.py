"""Files of weights: tensors in PyTorch's or the safetensors format, and jaxnet's own files of variables."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by name from here on
import numpy as np
import safetensors
import safetensors.numpy

from jaxnet.errors import InputError
from jaxnet.files import open_regular, parse_object, record_of, replacing
from jaxnet.weights.names import Source, common_name
from jaxnet.weights.torch_file import LEGACY, read_torch

# ---- Tensors of either format ---------------------------------------------------------------------------

# The first four bytes of PyTorch's files. A safetensors file begins with a number, so its first byte may be any.
_TORCH = (LEGACY[:4], b"PK\x03\x04")
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")  # prefixes of DataParallel and torch.compile, in any order


def read_tensors(path: Path, source: Source) -> dict[str, np.ndarray]:
    """Return the tensors of a file by torchvision's names.

    The source 'safetensors' takes only a file in that format, and keeps its names.

    Raises:
        InputError: there is no such file, or it cannot be read in its format.
    """
    try:
        is_torch = is_of_torch(path)
        if is_torch and source == "safetensors":
            raise InputError(f"{path} is a file of PyTorch: give --from torchvision or --from timm")
        tensors = read_torch(path) if is_torch else read_safetensors(path)[0]
    except OSError as error:
        raise unreadable(path, error) from error
    if odd := [name for name in tensors if not name.isprintable()]:
        raise InputError(f"{path} has a tensor called {odd[0]!a}: wanted printable names")
    shared = os.path.commonprefix([*tensors])  # noqa: RUF071  # a prefix of characters is meant
    wrapped = len(shared) - len(_WRAPPERS.sub("", shared))
    return {common_name(name[wrapped:], source): tensor for name, tensor in tensors.items()}


def is_of_torch(path: Path) -> bool:
    """Return whether a file begins as PyTorch's do. Raises OSError."""
    with open_regular(path) as stream:
        return stream.read(4).startswith(_TORCH)


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of a safetensors file, and its metadata. Raises OSError and InputError."""
    open_regular(path).close()  # an error here has the system's reason, which the package's errors lack
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError) as error:  # TypeError: a dtype that NumPy does not know
        if is_of_torch(path):
            raise InputError(
                f"{path} is a file of PyTorch; convert it: jaxnet import --from torchvision {path} --model NAME "
                "--out FILE"
            ) from error
        raise InputError(
            f"{path} is neither a whole safetensors file of numbers nor a state dict of PyTorch: {error}"
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file as PyTorch's libraries write and read them, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    _write(path, tensors, {"format": "pt"})  # without it Hugging Face's transformers refuse a file


def _write(path: Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    try:
        with replacing(path) as fresh:
            safetensors.numpy.save_file(dict(arrays), fresh, metadata)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"weights cannot be written to {path}: {reason}") from error


def unreadable(path: Path, error: OSError) -> InputError:
    """Return the error for a file that the system does not read."""
    return InputError(f"weights cannot be read from {path}: {error.strerror}")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ---- Variables of a Flax model --------------------------------------------------------------------------
#
# One safetensors file: variables by flat name, and `WeightsMetadata` as JSON in its metadata.


class WeightsMetadata(NamedTuple):
    """The network that the variables of a file belong to, and their origin.

    Attributes:
        model: its name in the zoo.
        num_classes: how many classes it has.
        source: the library whose names the original file had.
        source_file: the name of the original file.
        source_sha256: the digest of the original file.
        left_out: variables of the model that are not in the file, such as those of a new head.
        mean: mean of the pixels, scaled to [0, 1], that the weights expect; one number, or one per channel. None: the
            usual one for the model. Neither this nor `std` is checked here.
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


def write_variables(path: Path, variables: Mapping[str, np.ndarray], about: WeightsMetadata) -> None:
    """Write a file of variables, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    _write(path, variables, {"about": json.dumps(about._asdict())})


def read_variables(path: Path) -> tuple[dict[str, np.ndarray], WeightsMetadata]:
    """Return the variables of a file that `write_variables` wrote, by flat name, and its metadata.

    Raises:
        InputError: there is no such file, or it is of another kind.
    """
    try:
        variables, metadata = read_safetensors(path)
    except OSError as error:
        raise InputError(f"{unreadable(path, error)}; `jaxnet import` writes such a file") from error
    return variables, _about(path, metadata)


def read_names(path: Path) -> tuple[list[str], WeightsMetadata]:
    """Return only the names of the variables of such a file, and its metadata. The file was read before."""
    with safetensors.safe_open(path, framework="np") as file:
        return list(file.keys()), _about(path, file.metadata() or {})


def _about(path: Path, metadata: Mapping[str, str]) -> WeightsMetadata:
    try:
        return record_of(WeightsMetadata, parse_object(metadata["about"]))
    except (KeyError, ValueError) as error:
        why = "its metadata has no 'about'" if isinstance(error, KeyError) else f"in its metadata {error}"
        raise InputError(
            f"{path} does not hold variables of jaxnet ({why}); make such a file from it: jaxnet import --from "
            f"safetensors {path} --model NAME --out FILE"
        ) from error
