"""A file of tensors, in whichever of the two formats, as names and arrays."""

import hashlib
import os
import re
from pathlib import Path

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by name from here on
import numpy as np
import safetensors

from jaxnet.errors import InputError
from jaxnet.weights.names import Source, common_name
from jaxnet.weights.torch_file import LEGACY, read_torch

# Four bytes of each: a safetensors file begins with a number, whose first byte may be any.
_TORCH = (LEGACY[:4], b"PK\x03\x04")
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")  # of DataParallel and torch.compile, in any order


def read_tensors(path: Path, source: Source) -> dict[str, np.ndarray]:
    """The tensors of a file by torchvision's names; 'safetensors' takes a file in that format only, names as they are.

    Raises:
        InputError: there is no such file, or it cannot be read as what it should be.
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
    shared = os.path.commonprefix([*tensors])  # noqa: RUF071  # of characters, as meant
    wrapped = len(shared) - len(_WRAPPERS.sub("", shared))
    return {common_name(name[wrapped:], source): tensor for name, tensor in tensors.items()}


def is_of_torch(path: Path) -> bool:
    """Whether a file begins as PyTorch's do. OSError as it comes."""
    with path.open("rb") as stream:
        return stream.read(4).startswith(_TORCH)


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of a safetensors file, and its metadata. OSError and InputError as they come."""
    path.open("rb").close()  # whose errors, unlike the package's, give the system's reason
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


def unreadable(path: Path, error: OSError) -> InputError:
    """The system's reason, as a message."""
    return InputError(f"weights cannot be read from {path}: {error.strerror}")


def file_digest(path: Path) -> str:
    """The SHA-256 of a file. OSError as it comes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
