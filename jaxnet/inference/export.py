"""Write and read a trained network as a StableHLO program that JAX alone runs: from images to probabilities.

Of networks for other data: from arrays by name to what the task says of them.

    FILE                        what jax.export serializes
    FILE.weights.safetensors    the weights, if they are not inside
    FILE.json                   what it takes, the version of JAX, and the digests of the others

An older description is deleted first and the new one is written last, so a description is there only while all files
belong together.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export as jax_export
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxnet.checkpoints.leaves import by_name, described, named_leaves, shapes_of
from jaxnet.cluster.devices import local_device_count
from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.files import OddFile, read_object, record_of, regular, replace, replacing, require_replaceable
from jaxnet.inference.network import Network
from jaxnet.inference.predictor import Predictor, batch_sizes
from jaxnet.models import inference_options
from jaxnet.weights import file_digest, to_tensors, write_tensors
from jaxnet.weights.files import read_safetensors

FORMAT = "jaxnet exported network 1"
PLATFORMS = ("cpu", "cuda", "tpu")
_MOST_INSIDE = 2**30  # largest weights inside a program: a file of jax.export cannot be larger than twice this


def export(
    network: Network,
    out: Path,
    *,
    batch: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
    separate_weights: bool = False,
) -> list[Path]:
    """Write `network` to `out`, and the files beside it; return their paths.

    Args:
        network: its parameters become constants of the program, or its first argument, by name.
        out: the program. `jax.export.deserialize(bytearray(out.read_bytes())).call(images)` runs it; with separate
            weights, `.call(safetensors.numpy.load_file(...), images)`.
        batch: the only batch size that it takes; None: any.
        platforms: where it can run: some of cpu, cuda and tpu.
        separate_weights: put the parameters beside the program.

    Raises:
        InputError: the program would be too large, or cannot be written.
    """
    files = [out, *([weights_path(out)] * separate_weights), description_path(out)]
    with _writing(out):  # before the work is done
        for path in files:
            require_replaceable(path)
    size = sum(leaf.nbytes for leaf in network.weights.values())
    if size > _MOST_INSIDE and not separate_weights:
        raise InputError(f"{size} bytes of weights do not fit into a program: use --weights separate")
    program = bytes(_exported(network, batch, platforms, separate_weights).serialize())
    description: dict[str, Any] = {
        "format": FORMAT,
        **_described(network.architecture.inputs),
        "batch": batch,
        "jax": jax.__version__,
        "platforms": list(platforms),
        "bytes": len(program),
        "sha256": hashlib.sha256(program).hexdigest(),
        "weights_bytes": None,
        "weights_sha256": None,
    }
    with _writing(out):
        # An older description must not stand beside a newer program.
        description_path(out).unlink(missing_ok=True)
        if separate_weights:
            description["weights_sha256"] = _write_weights(network, weights_path(out))
            description["weights_bytes"] = weights_path(out).stat().st_size
        replace(out, program)
        replace(description_path(out), json.dumps(description, indent=1) + "\n")
    return files


def export_weights(network: Network, out: Path) -> int:
    """Write the weights of `network` as PyTorch has them, a safetensors file; return how many tensors it holds.

    Names and layouts are those that `jaxnet import` reads: torchvision's for the networks of the zoo, and by the same
    rule for others.

    Raises:
        InputError: it is an ensemble, two names are one in PyTorch, or it cannot be written.
    """
    if network.architecture.members > 1:
        raise InputError(f"{network.where} has {network.architecture.members} members: give --member N")
    weights = {name: np.asarray(leaf) for name, leaf in network.weights.items()}
    tensors = to_tensors(weights, network.architecture.maps)
    write_tensors(out, tensors)
    return len(tensors)


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OddFile as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}; give another name") from error
    except (OSError, SafetensorError) as error:
        raise InputError(f"{out} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _described(inputs: Inputs | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(inputs, Inputs):
        return {"inputs": inputs.as_json()}
    return {"example": described(named_leaves(dict(inputs)))}


def description_path(out: Path) -> Path:
    """Return where the description of an exported program is."""
    return out.with_name(f"{out.name}.json")


def weights_path(out: Path) -> Path:
    """Return where the weights of an exported program are, unless they are inside."""
    return out.with_name(f"{out.name}.weights.safetensors")


def _exported(network: Network, batch: int | None, platforms: Sequence[str], separate: bool) -> jax_export.Exported:
    architecture, weights = network.architecture, network.weights
    size = jax_export.symbolic_shape("batch")[0] if batch is None else batch
    given = architecture.given(size)
    try:
        if separate:
            shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in weights.items()}
            return jax_export.export(jax.jit(architecture.predictions), platforms=platforms)(shapes, given)
        program = jax.jit(lambda given: architecture.predictions(weights, given))
        return jax_export.export(program, platforms=platforms)(given)
    except Exception as error:  # not every network can be traced with a symbolic size, or lowered for every platform
        hint = "; try a fixed size with --batch" if batch is None else ""
        raise InputError(f"{network.where} cannot be exported for {', '.join(platforms)}: {error}{hint}") from error


def _write_weights(network: Network, path: Path) -> str:
    with replacing(path) as fresh:
        save_file({name: np.asarray(leaf) for name, leaf in network.weights.items()}, fresh)
        return file_digest(fresh)


# ---- Read an exported network ---------------------------------------------------------------------------


def load_exported(path: Path, batch: int = 32) -> Predictor:
    """Return the exported network, in batches of up to `batch`, or of the one size that it takes.

    The files are verified by their digests, and only JAX runs the program. The program computes what its author wants,
    but it can reach no file and no network by itself.

    Raises:
        InputError: it was not written by `jaxnet export`, has changed since, or is for other platforms or a newer JAX.
    """
    local_device_count()  # says in one line why there are none
    about = _description(path)
    _require(path, about.sha256, about.bytes)
    exported = _deserialized(path, about.jax)
    platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if platform not in exported.platforms:
        raise InputError(f"{path} is for {', '.join(exported.platforms)}; JAX has {platform} here: export it again")
    arguments: tuple[Any, ...] = ()
    if about.weights_sha256 is not None:
        _require(weights_path(path), about.weights_sha256, about.weights_bytes)
        weights, _ = read_safetensors(weights_path(path))
        arguments = (jax.device_put(weights, jax.devices()[0]),)
    run = jax.jit(exported.call, compiler_options=inference_options(jax.default_backend()))
    sizes = batch_sizes(batch) if about.batch is None else (about.batch,)
    try:
        inputs = about.given()
    except (ValueError, TypeError) as error:
        raise InputError(f"{description_path(path)} does not say what the program takes: {error}") from error
    return Predictor(lambda given: jax.device_get(run(*arguments, given)), inputs, sizes, str(path))


class _Description(NamedTuple):
    """What of a description is needed to call the program; `inputs`, or else `example`, says what it takes.

    Older descriptions do not say how long the files are.
    """

    batch: int | None
    jax: str
    sha256: str
    weights_sha256: str | None
    inputs: dict[str, Any] | None = None
    example: dict[str, str] | None = None
    bytes: int | None = None
    weights_bytes: int | None = None

    def given(self) -> Inputs | dict[str, Any]:
        if self.inputs is not None:
            return Inputs.from_json(self.inputs)
        return by_name(shapes_of(self.example or {}))


def _description(path: Path) -> _Description:
    beside = description_path(path)
    try:
        about = read_object(beside)
    except OSError as error:
        of_torch = f" Weights of PyTorch are taken by `jaxnet import --from torchvision {path} ...` first."
        raise InputError(
            f"{path} is neither a directory nor a .safetensors file, and {beside}, which `jaxnet export` writes beside "
            f"a program, cannot be read: {error.strerror}.{of_torch if path.suffix in ('.pth', '.pt') else ''}"
        ) from error
    except ValueError as error:
        raise InputError(f"{beside} is damaged: {error}") from error
    if about.get("format") != FORMAT:
        raise InputError(f"{beside} does not describe an exported network: wanted the format {FORMAT!r}")
    try:
        found = record_of(_Description, {name: about[name] for name in _Description._fields if name in about})
        if found.batch is not None and found.batch < 1:
            raise ValueError(f"its batch is {found.batch}")
        return found
    except ValueError as error:
        raise InputError(f"{beside} does not describe an exported network: {error}") from error


def _deserialized(path: Path, written_by: str) -> jax_export.Exported:
    try:
        exported = jax_export.deserialize(bytearray(path.read_bytes()))
        exported.mlir_module()
    except Exception as error:  # StableHLO promises only that newer versions read what older ones wrote
        raise InputError(
            f"{path} was written with JAX {written_by}, and JAX {jax.__version__} cannot read it: export it with the "
            "older of the two"
        ) from error
    return exported


def _require(path: Path, sha256: str, size: int | None) -> None:
    try:
        there = regular(path).st_size
        if size not in (None, there):  # first, because a file without an end has no digest
            raise InputError(f"{path} is not as it was written: it has {there:,} bytes, its description says {size:,}")
        digest = file_digest(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if digest != sha256:
        raise InputError(f"{path} is not as it was written (its SHA-256 differs from that in its description)")
