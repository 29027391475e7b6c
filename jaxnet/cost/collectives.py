"""How fast messages travel: nccl-tests' table for every transfer, axis and size, and the peak of each link."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import Mesh

from jaxnet.comm import AXES, MiB
from jaxnet.comm.collective import axes_size
from jaxnet.cost.bandwidth import GB, algbw, busbw_factor, percentile
from jaxnet.cost.processes import gathered, wait_for_all
from jaxnet.cost.transfers import TRANSFERS, Axes, Transfer, make_program

_WARMUPS = 2
_LARGE = 1 * MiB
_PROBE_ITERATIONS = 5
# Which of them fills a link depends on the transport: over Gloo all-reduces do, and permutes of at most 1 MiB.
PROBES: tuple[tuple[str, int], ...] = (("permute", 1 * MiB), ("all_reduce", 4 * MiB), ("all_reduce", 32 * MiB))


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        axis: the axes, joined by '+'.
        size: how many devices take part.
        bytes: S: what all-reduce sums, reduce-scatter takes in, all-gather gives out, a permute's sender sends.
        min_us: the fastest iteration; an iteration's time is the mean over processes, microseconds.
        p50_us: the median iteration.
        p99_us: the 99th percentile.
        algbw: S / p50, GB/s.
        busbw: algbw x `busbw_factor`, GB/s.
        percent_of_peak: busbw as percent of the peak of these axes.
        wrong: elements of the first result that were wrong, on all processes.
    """

    algorithm: str
    axis: str
    size: int
    bytes: int
    elements: int
    min_us: float
    p50_us: float
    p99_us: float
    algbw: float
    busbw: float
    percent_of_peak: float
    wrong: int


def communicating_axes(mesh: Mesh) -> list[Axes]:
    """The axes that join several devices: each by itself, and both together if both do."""
    single: list[Axes] = [(axis,) for axis in AXES if mesh.shape[axis] > 1]
    return [*single, AXES] if len(single) == 2 else single


def measure_collectives(
    mesh: Mesh,
    sizes: Sequence[int],
    axes: Sequence[Axes],
    transfers: Sequence[Transfer],
    iterations: int,
    probes: Sequence[tuple[str, int]] = PROBES,
) -> tuple[list[Row], dict[str, float]]:
    """Measure every transfer of `transfers` over each of `axes` with messages of `sizes` bytes.

    Every process must call it with the same arguments. The second result is the peak of each axis in bytes a
    second: the best busbw of any call among the backend's own collectives with messages of 1 MiB and more, those of the
    table and those of `probes`.
    """
    rows, peaks = [], {}
    for over in axes:
        peak, measured = link_peak(mesh, over, probes), []
        for transfer in transfers:
            for size in sizes:
                row = _measure(mesh, over, transfer, size, iterations)
                measured.append(row)
                if transfer.plain and row.bytes >= _LARGE:
                    peak = max(peak, _best_rate(row))
        peaks["+".join(over)] = peak
        rows += [replace(row, percent_of_peak=100 * row.busbw * GB / peak) for row in measured]
    return rows, peaks


def link_peak(mesh: Mesh, axes: Axes, probes: Sequence[tuple[str, int]] = PROBES) -> float:
    """Bytes a second that each device can send over `axes`: the fastest call of `probes`, (name, bytes) each."""
    return max(_best_rate(_measure(mesh, axes, TRANSFERS[name], size, _PROBE_ITERATIONS)) for name, size in probes)


def _best_rate(row: Row) -> float:
    """Wire bytes a second of the fastest call: on a shared machine the others say what else was going on."""
    return GB * row.busbw * row.p50_us / row.min_us


def _measure(mesh: Mesh, axes: Axes, transfer: Transfer, size: int, iterations: int) -> Row:
    program = make_program(transfer, axes, size, mesh)
    # Compiling takes each process another time, and some collectives do not wait long for the last.
    wait_for_all()
    wrong = program.wrong_elements(jax.block_until_ready(program.call(program.message)))
    wait_for_all()
    times = np.empty(iterations)
    for index in range(-_WARMUPS, iterations):
        started = time.perf_counter()
        jax.block_until_ready(program.call(program.message))
        if index >= 0:
            times[index] = time.perf_counter() - started
    seen = gathered(np.append(times, wrong))
    return make_row(transfer, axes, axes_size(axes, mesh.shape), program.elements, seen[:, :-1], int(seen[:, -1].sum()))


def make_row(transfer: Transfer, axes: Axes, size: int, elements: int, times: np.ndarray, wrong: int) -> Row:
    """The arithmetic of a line, without the peak; `times` is [processes, iterations], seconds."""
    means = times.mean(0)
    p50, p99 = percentile(means, 50), percentile(means, 99)
    rate = algbw(4 * elements, p50)
    return Row(
        algorithm=transfer.name,
        axis="+".join(axes),
        size=size,
        bytes=4 * elements,
        elements=elements,
        min_us=float(means.min()) * 1e6,
        p50_us=p50 * 1e6,
        p99_us=p99 * 1e6,
        algbw=rate,
        busbw=rate * busbw_factor(transfer.kind, size),
        percent_of_peak=float("nan"),
        wrong=wrong,
    )
