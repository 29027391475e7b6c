"""A predictor from what `jaxnet export` wrote: the files are verified, and only JAX runs what is in them."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.inference.export import FORMAT, description_path, weights_path
from jaxnet.inference.predictor import Predictor, batch_sizes
from jaxnet.models import inference_options
from jaxnet.weights import file_digest
from jaxnet.weights.files import read_safetensors


def load_exported(path: Path, batch: int = 32) -> Predictor:
    """The exported network, in batches of up to `batch`, or of the one size that it takes.

    The file is a program: it computes what its author wants, though it can reach no file and no network by itself.

    Raises:
        InputError: it was not written by `jaxnet export`, has changed since, or is for other platforms or a newer JAX.
    """
    about = _description(path)
    _require(path, about["sha256"])
    exported = _deserialized(path, about["jax"])
    platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if platform not in exported.platforms:
        raise InputError(f"{path} is for {', '.join(exported.platforms)}; JAX has {platform} here: export it again")
    arguments: tuple[Any, ...] = ()
    if about["weights_sha256"] is not None:
        _require(weights_path(path), about["weights_sha256"])
        weights, _ = read_safetensors(weights_path(path))
        arguments = (jax.device_put(weights, jax.devices()[0]),)
    run = jax.jit(exported.call, compiler_options=inference_options(jax.default_backend()))
    sizes = batch_sizes(batch) if about["batch"] is None else (about["batch"],)
    inputs = Inputs.from_json(about["inputs"])
    return Predictor(lambda images: np.asarray(run(*arguments, images)), inputs, sizes, str(path))


def _description(path: Path) -> dict[str, Any]:
    beside = description_path(path)
    try:
        about = json.loads(beside.read_bytes())
    except OSError as error:
        of_torch = f" Weights of PyTorch are taken by `jaxnet import --from torchvision {path} ...` first."
        raise InputError(
            f"{path} is neither a directory nor a .safetensors file, and {beside}, which `jaxnet export` writes beside "
            f"a program, cannot be read: {error.strerror}.{of_torch if path.suffix in ('.pth', '.pt') else ''}"
        ) from error
    except ValueError as error:
        raise InputError(f"{beside} is damaged: {error}") from error
    keys = ("inputs", "batch", "jax", "sha256", "weights_sha256")
    if not isinstance(about, dict) or about.get("format") != FORMAT or any(key not in about for key in keys):
        raise InputError(f"{beside} does not describe an exported network: wanted the format {FORMAT!r}")
    return about


def _deserialized(path: Path, written_by: str) -> jax_export.Exported:
    exported = jax_export.deserialize(bytearray(path.read_bytes()))
    try:
        exported.mlir_module()
    except Exception as error:  # StableHLO promises that newer versions read what older ones wrote, and no more
        raise InputError(
            f"{path} was written with JAX {written_by}, and JAX {jax.__version__} cannot read it: export it with the "
            "older of the two"
        ) from error
    return exported


def _require(path: Path, sha256: str) -> None:
    try:
        digest = file_digest(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if digest != sha256:
        raise InputError(f"{path} is not as it was written (its SHA-256 differs from that in its description)")
