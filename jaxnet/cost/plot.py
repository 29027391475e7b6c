"""A picture of a step benchmark: compute and exposed communication as bars, the bound of each schedule as a mark."""

from pathlib import Path

from jaxnet.cost.step_bench import Report
from jaxnet.errors import InputError


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, what could not be drawn or written in the end."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InputError("--plot needs matplotlib, which is not installed: pip install 'matplotlib>=3.10'") from None
    if path.suffix != ".png":
        raise InputError(f"--plot {path}: wanted a file name that ends in .png")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no directory {path.parent}")


def plot_steps(report: Report, path: Path) -> None:
    """Write `report` as a PNG."""
    from matplotlib.figure import Figure

    figures = report.figures[::-1]  # the first on top
    rows = range(len(figures))
    figure = Figure(figsize=(8, 1.5 + 0.45 * len(figures)), layout="constrained")
    axes = figure.subplots()
    axes.barh(rows, [f.compute_ms for f in figures], color="0.65", label="compute")
    exposed = [max(f.exposed_ms, 0) for f in figures]
    axes.barh(rows, exposed, left=[f.compute_ms for f in figures], color="tab:red", label="exposed communication")
    axes.plot([f.bound_ms for f in figures], rows, "k|", markersize=18, label="lower bound of the schedule")
    axes.set_yticks(rows, [f.label for f in figures])
    axes.set_xlabel(f"milliseconds a step, median of {report.rounds} rounds")
    mesh = "x".join(str(size) for size in report.mesh.values())
    axes.set_title(f"{report.workload}, {report.batch} examples a host, mesh {mesh}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
