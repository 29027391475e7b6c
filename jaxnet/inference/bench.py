"""How long a network of the zoo takes for one batch, by the size of the batch."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.inference.network import Architecture, Weights, in_dtype
from jaxnet.models import inference_options
from jaxnet.models.zoo import ZOO, nearest
from jaxnet.training.loss import Pixels

_WARM_UP = 3  # calls of each program that are not timed


@dataclass(frozen=True)
class Row:
    """One size of a batch.

    Attributes:
        batch: images.
        p50_ms: of the calls, half took no longer.
        p99_ms: the same of 99 in 100.
        min_ms: the fastest.
        images_per_second: with one batch after the other, over all timed calls.
        compile_seconds: from the traced function to the program.
        temporary_bytes: that the program needs beside its arguments and results; None where the backend does not say.
    """

    batch: int
    p50_ms: float
    p99_ms: float
    min_ms: float
    images_per_second: float
    compile_seconds: float
    temporary_bytes: int | None


@dataclass(frozen=True)
class Report:
    """What was measured, and on what."""

    model: str
    image_shape: tuple[int, int, int]
    dtype: str
    width: float
    device: str
    parameters: int
    parameter_bytes: int
    iterations: int
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def bench_inference(
    name: str,
    batches: Sequence[int],
    *,
    dtype: str = "float32",
    width: float = 1.0,
    image: int | None = None,
    iterations: int = 50,
) -> Report:
    """Time calls with random weights, of batches that lie on the device: normalization, network and softmax.

    Calls of all sizes alternate, so that what else the machine does meets all of them; each is waited for.

    Raises:
        InputError: there is no such network, or it does not take such images.
    """
    architecture = _architecture(name, dtype, width, image)
    device = jax.devices()[0]
    weights = in_dtype(jax.device_put(_random_weights(architecture), device), dtype)
    pixels = np.random.default_rng(0).integers(0, 256, (max(batches), *architecture.inputs.image_shape), np.uint8)
    images = [jax.device_put(pixels[:batch], device) for batch in batches]
    programs = [_compiled(architecture, weights, batch) for batch in images]
    for (program, _), batch in zip(programs, images, strict=True):
        for _ in range(_WARM_UP):
            jax.block_until_ready(program(weights, batch))
    seconds = np.empty((iterations, len(images)))
    for row in seconds:
        for place, ((program, _), batch) in enumerate(zip(programs, images, strict=True)):
            started = time.perf_counter()
            jax.block_until_ready(program(weights, batch))
            row[place] = time.perf_counter() - started
    rows = [_row(*made) for made in zip(batches, seconds.T, programs, strict=True)]
    counted = [leaf for leaf_name, leaf in weights.items() if leaf_name.startswith("params/")]
    return Report(
        model=name,
        image_shape=architecture.inputs.image_shape,
        dtype=dtype,
        width=width,
        device=device.device_kind,
        parameters=sum(leaf.size for leaf in counted),
        parameter_bytes=sum(leaf.nbytes for leaf in counted),
        iterations=iterations,
        rows=tuple(rows),
    )


def _architecture(name: str, dtype: str, width: float, image: int | None) -> Architecture:
    if name not in ZOO:
        raise InputError(f"--model {name}: there is no such network; {nearest(name)}")
    entry = ZOO[name]
    height, wide, channels = entry.image
    shape = (height, wide, channels) if image is None else (image, image, channels)
    module = entry.build(num_classes=entry.classes, width=width)
    architecture = Architecture(module, Pixels(), Inputs(shape, entry.classes)).in_dtype(dtype)
    architecture.check(f"--model {name} --image {shape[0]}")
    return architecture


def _random_weights(architecture: Architecture) -> dict[str, np.ndarray]:
    """Kernels that keep activations near 1, and no bias; the network's own would have to be compiled first."""
    draw = np.random.default_rng(0)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) > 1:
            return draw.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / math.prod(shape[:-1])))
        return np.full(shape, 1 if name.endswith(("/scale", "/var")) else 0, np.float32)

    return {name: value(name, leaf.shape) for name, leaf in architecture.shapes.items()}


def _compiled(architecture: Architecture, weights: Weights, images: jax.Array) -> tuple[jax.stages.Compiled, float]:
    options = inference_options(jax.default_backend())
    lowered = jax.jit(architecture.probabilities, compiler_options=options).lower(weights, images)
    started = time.perf_counter()
    return lowered.compile(), time.perf_counter() - started


def _row(batch: int, seconds: np.ndarray, program: tuple[jax.stages.Compiled, float]) -> Row:
    compiled, compile_seconds = program
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    memory = compiled.memory_analysis()
    return Row(
        batch=batch,
        p50_ms=float(p50),
        p99_ms=float(p99),
        min_ms=float(seconds.min() * 1e3),
        images_per_second=float(batch * len(seconds) / seconds.sum()),
        compile_seconds=compile_seconds,
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
    )
