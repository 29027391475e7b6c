"""Measurements as text."""

from collections.abc import Mapping, Sequence

from jaxnet.cost.collectives import Row
from jaxnet.cost.step_bench import Figures, Report

_COLLECTIVE_COLUMNS = (
    "algorithm",
    "axis",
    "n",
    "bytes",
    "elements",
    "min us",
    "p50 us",
    "p99 us",
    "algbw",
    "busbw",
    "%peak",
)
_STEP_COLUMNS = (
    "strategy",
    "schedule",
    "step",
    "min",
    "spread",
    "compute",
    "comm",
    "exposed",
    "overlap",
    "bound",
    "step/bound",
    "ratio",
)


def collectives_text(rows: Sequence[Row], peaks: Mapping[str, float], mesh: Mapping[str, int]) -> str:
    """nccl-tests' table, and how to read it."""
    head = [
        f"mesh {_sizes(mesh)}; float32; algbw and busbw in GB/s (10^9), as nccl-tests defines them",
        *(f"peak of {axis}: {peak / 1e9:.3f} GB/s" for axis, peak in peaks.items()),
        "(the busbw of the fastest call of the backend's own collectives with 1 MiB or more in this run)",
    ]
    return "\n".join([*head, *aligned([_COLLECTIVE_COLUMNS, *map(_collective_cells, rows)], left=2)])


def _collective_cells(row: Row) -> tuple[str, ...]:
    return (
        row.algorithm,
        row.axis,
        str(row.size),
        str(row.bytes),
        str(row.elements),
        f"{row.min_us:.1f}",
        f"{row.p50_us:.1f}",
        f"{row.p99_us:.1f}",
        f"{row.algbw:.3f}",
        f"{row.busbw:.3f}",
        f"{row.percent_of_peak:.1f}" + (f"  {row.wrong} WRONG" if row.wrong else ""),
    )


def step_text(report: Report) -> str:
    """A line a strategy, and what it was measured on."""
    compute = ", ".join(f"{name} {value:.2f}" for name, value in report.compute_ms.items())
    head = [
        f"{report.workload}, {report.batch} examples a host, mesh {_sizes(report.mesh)}; milliseconds, medians of "
        f"{report.rounds} interleaved rounds of {report.steps_per_round} steps",
        f"without communication: {compute}",
        *(f"peak of {axis}: {peak:.3f} GB/s" for axis, peak in report.peaks.items()),
    ]
    return "\n".join([*head, *aligned([_STEP_COLUMNS, *map(_step_cells, report.figures)], left=2)])


def _step_cells(figures: Figures) -> tuple[str, ...]:
    return (
        figures.label,
        figures.schedule,
        f"{figures.step_ms:.2f}",
        f"{figures.min_ms:.2f}",
        f"{figures.spread_percent:.0f}%",
        f"{figures.compute_ms:.2f}",
        f"{figures.communication_ms:.2f}",
        f"{figures.exposed_ms:.2f}",
        f"{figures.overlap:.2f}",
        f"{figures.bound_ms:.2f}",
        f"{figures.over_bound:.2f}",
        f"{figures.ratio:.3f}",
    )


def _sizes(mesh: Mapping[str, int]) -> str:
    return "x".join(str(size) for size in mesh.values())


def aligned(cells: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns as wide as their widest cell; the first `left` of them flush left."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
