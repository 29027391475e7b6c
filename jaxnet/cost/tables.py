"""Measurements as text and as pictures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxnet.cost.collectives import CollectiveRow
from jaxnet.cost.step_bench import Figures, StepReport
from jaxnet.figures import COLOURS, curve_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---- Text -----------------------------------------------------------------------------------------------

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


def collectives_text(rows: Sequence[CollectiveRow], peaks: Mapping[str, float], mesh: Mapping[str, int]) -> str:
    """nccl-tests' table, and how to read it."""
    head = [
        f"mesh {_sizes(mesh)}; float32; algbw and busbw in GB/s (10^9), as nccl-tests defines them",
        *(f"peak of {axis}: {peak / 1e9:.3f} GB/s" for axis, peak in peaks.items()),
        "(the busbw of the fastest call of the backend's own collectives with 1 MiB or more in this run)",
    ]
    return "\n".join([*head, *aligned([_COLLECTIVE_COLUMNS, *map(_collective_cells, rows)], left=2)])


def _collective_cells(row: CollectiveRow) -> tuple[str, ...]:
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


def step_text(report: StepReport) -> str:
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


# ---- Pictures -------------------------------------------------------------------------------------------


def draw_collectives(rows: Sequence[CollectiveRow], peaks: Mapping[str, float], mesh: Mapping[str, int]) -> "Figure":
    """Rate against size, a panel for the axes of each measured group of devices, a curve an algorithm.

    Raises:
        InputError: matplotlib is missing.
    """
    over = list(dict.fromkeys(row.axis for row in rows))
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    figure = new_figure(1.6 + 3.6 * len(over), 4.4)
    panels = figure.subplots(1, len(over), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, over, strict=True):
        for index, name in enumerate(algorithms):
            found = [row for row in rows if (row.axis, row.algorithm) == (axis, name)]
            points = [row.bytes for row in found], [row.busbw for row in found]
            panel.plot(*points, label=name, markersize=4, **curve_style(index))
        if axis in peaks:
            panel.axhline(peaks[axis] / 1e9, color="0.6", linestyle="--", linewidth=1)
        panel.set(xscale="log", yscale="log", xlabel="bytes of a message")
        panel.set_title(f"over {axis}", loc="left", fontsize=10)
        panel.spines[["right", "top"]].set_visible(False)
    panels[0].set_ylabel("bus bandwidth, GB/s")
    figure.suptitle(f"mesh {_sizes(mesh)}, medians; dashed: the peak of this run", x=0.01, ha="left", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=5, frameon=False, fontsize=8)
    return figure


def draw_steps(report: StepReport) -> "Figure":
    """Compute and exposed communication of each strategy as bars, and the bound of its schedule as a mark.

    Raises:
        InputError: matplotlib is missing.
    """
    figures = report.figures[::-1]  # the first on top
    rows = range(len(figures))
    figure = new_figure(8, 1.5 + 0.45 * len(figures))
    axes = figure.subplots()
    axes.barh(rows, [f.compute_ms for f in figures], color="0.65", label="compute")
    exposed = [max(f.exposed_ms, 0) for f in figures]
    axes.barh(rows, exposed, left=[f.compute_ms for f in figures], color=COLOURS[1], label="exposed communication")
    axes.plot([f.bound_ms for f in figures], rows, "k|", markersize=18, label="lower bound of the schedule")
    axes.set_yticks(rows, [f.label for f in figures])
    axes.set_xlabel(f"milliseconds a step, median of {report.rounds} rounds")
    axes.set_title(f"{report.workload}, {report.batch} examples a host, mesh {_sizes(report.mesh)}")
    figure.legend(loc="outside lower left", ncols=3, frameon=False)
    return figure
