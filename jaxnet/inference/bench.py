"""Measure how long a network of the zoo takes for one batch, by batch size."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxnet.cluster.devices import local_device_count
from jaxnet.cost.tables import aligned
from jaxnet.data import Inputs
from jaxnet.errors import InputError
from jaxnet.figures import COLOURS, new_figure
from jaxnet.inference.network import Architecture, Weights, in_dtype
from jaxnet.limits import memory_bytes
from jaxnet.models import inference_options
from jaxnet.models.zoo import ZOO, nearest
from jaxnet.tasks.classification import ImageClassification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WARM_UP = 3  # calls of each program that are not timed


@dataclass(frozen=True)
class LatencyRow:
    """The times of one batch size.

    Attributes:
        batch: images in a batch.
        p50_ms: median time of a call.
        p99_ms: 99th percentile.
        min_ms: the fastest call.
        images_per_second: throughput of one batch after the other, over all timed calls.
        compile_seconds: time from the lowered program to the compiled one.
        temporary_bytes: memory beside arguments and results; None if the backend does not say.
    """

    batch: int
    p50_ms: float
    p99_ms: float
    min_ms: float
    images_per_second: float
    compile_seconds: float
    temporary_bytes: int | None


@dataclass(frozen=True)
class LatencyReport:
    """The measured times, with the network and the device."""

    model: str
    image_shape: tuple[int, int, int]
    dtype: str
    width: float
    device: str
    parameters: int
    parameter_bytes: int
    iterations: int
    rows: tuple[LatencyRow, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def bench_inference(
    name: str,
    batches: Sequence[int],
    *,
    dtype: str = "float32",
    width: float = 1.0,
    image: int | None = None,
    iterations: int = 50,
) -> LatencyReport:
    """Time calls with random weights and batches that are on the device: normalization, network and softmax.

    Calls of all sizes alternate, so that other load on the machine affects all of them; each call is waited for.

    Raises:
        InputError: there is no such network, or it does not take such images.
    """
    local_device_count()  # says in one line why there are none
    architecture, shape = _architecture(name, dtype, width, image)
    needed = max(batches) * math.prod(shape) * np.dtype("float32").itemsize
    if needed > memory_bytes():
        raise InputError(
            f"--batch {max(batches)}: so many images of {'x'.join(map(str, shape))} take {needed / 1e9:,.0f} GB, and "
            f"this machine has {memory_bytes() / 1e9:,.0f}; give fewer or smaller ones"
        )
    device = jax.devices()[0]
    weights = in_dtype(jax.device_put(_random_weights(architecture), device), dtype)
    pixels = np.random.default_rng(0).integers(0, 256, (max(batches), *shape), np.uint8)
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
    return LatencyReport(
        model=name,
        image_shape=shape,
        dtype=dtype,
        width=width,
        device=device.device_kind,
        parameters=sum(leaf.size for leaf in counted),
        parameter_bytes=sum(leaf.nbytes for leaf in counted),
        iterations=iterations,
        rows=tuple(rows),
    )


def _architecture(name: str, dtype: str, width: float, image: int | None) -> tuple[Architecture, tuple[int, int, int]]:
    """Return a network of the zoo, and the shape of its images."""
    if name not in ZOO:
        raise InputError(f"--model {name}: there is no such network; {nearest(name)}")
    entry = ZOO[name]
    height, wide, channels = entry.image
    shape = (height, wide, channels) if image is None else (image, image, channels)
    module = entry.build(num_classes=entry.classes, width=width)
    inputs = Inputs(shape, entry.classes)
    architecture = Architecture(module, ImageClassification(), inputs).in_dtype(dtype)
    architecture.check(f"--model {name} --image {shape[0]}")
    return architecture, shape


def _random_weights(architecture: Architecture) -> dict[str, np.ndarray]:
    """Return kernels that keep activations near 1, and no bias. The network's own `init` would need compiling."""
    draw = np.random.default_rng(0)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) > 1:
            return draw.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / math.prod(shape[:-1])))
        return np.full(shape, 1 if name.endswith(("/scale", "/var")) else 0, np.float32)

    return {name: value(name, leaf.shape) for name, leaf in architecture.shapes.items()}


def _compiled(architecture: Architecture, weights: Weights, images: jax.Array) -> tuple[jax.stages.Compiled, float]:
    options = inference_options(jax.default_backend())
    lowered = jax.jit(architecture.predictions, compiler_options=options).lower(weights, images)
    started = time.perf_counter()
    return lowered.compile(), time.perf_counter() - started


def _row(batch: int, seconds: np.ndarray, program: tuple[jax.stages.Compiled, float]) -> LatencyRow:
    compiled, compile_seconds = program
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    memory = compiled.memory_analysis()
    return LatencyRow(
        batch=batch,
        p50_ms=float(p50),
        p99_ms=float(p99),
        min_ms=float(seconds.min() * 1e3),
        images_per_second=float(batch * len(seconds) / seconds.sum()),
        compile_seconds=compile_seconds,
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
    )


# ---- Table and picture ----------------------------------------------------------------------------------

_COLUMNS = ("batch", "p50 ms", "p99 ms", "min ms", "images/s", "compile s", "temporary MiB")


def bench_text(report: LatencyReport) -> str:
    """Return the report as a table, one line per batch size."""
    shape = "x".join(map(str, report.image_shape))
    head = [
        f"{report.model} on {report.device}, {shape} images, {report.dtype}, width {report.width:g}; "
        f"{report.iterations} calls of each size, alternating",
        f"{report.parameters:,} parameters, {report.parameter_bytes:,} bytes",
    ]
    return "\n".join([*head, *aligned([_COLUMNS, *map(_cells, report.rows)], left=0)])


def _cells(row: LatencyRow) -> tuple[str, ...]:
    memory = "?" if row.temporary_bytes is None else f"{row.temporary_bytes / 2**20:.1f}"
    times = (f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.min_ms:.2f}")
    return (str(row.batch), *times, f"{row.images_per_second:.1f}", f"{row.compile_seconds:.2f}", memory)


def draw_inference(report: LatencyReport) -> "Figure":
    """Latency and throughput against batch size; InputError if matplotlib is missing."""
    batches = [row.batch for row in report.rows]
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    axes.plot(batches, [row.p50_ms for row in report.rows], "o-", color=COLOURS[0], label="latency, p50")
    axes.plot(batches, [row.p99_ms for row in report.rows], "o:", color=COLOURS[0], label="latency, p99")
    axes.set(xscale="log", yscale="log", xlabel="images in a batch", ylabel="milliseconds")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    other = axes.twinx()
    rates = [row.images_per_second for row in report.rows]
    other.plot(batches, rates, "s-", color=COLOURS[1], label="images a second")
    other.set(ylabel="images a second", ylim=(0, None))
    axes.set_title(f"{report.model}, {report.dtype}, {report.device}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
