"""A benchmark of inference as a table and as a picture."""

from pathlib import Path

from jaxnet.cost.tables import aligned
from jaxnet.inference.bench import Report, Row

_COLUMNS = ("batch", "p50 ms", "p99 ms", "min ms", "images/s", "compile s", "temporary MiB")


def bench_text(report: Report) -> str:
    """A line a size."""
    shape = "x".join(map(str, report.image_shape))
    head = [
        f"{report.model} on {report.device}, {shape} images, {report.dtype}, width {report.width:g}; "
        f"{report.iterations} calls of each size, alternating",
        f"{report.parameters:,} parameters, {report.parameter_bytes:,} bytes",
    ]
    return "\n".join([*head, *aligned([_COLUMNS, *map(_cells, report.rows)], left=0)])


def _cells(row: Row) -> tuple[str, ...]:
    memory = "?" if row.temporary_bytes is None else f"{row.temporary_bytes / 2**20:.1f}"
    times = (f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.min_ms:.2f}")
    return (str(row.batch), *times, f"{row.images_per_second:.1f}", f"{row.compile_seconds:.2f}", memory)


def plot_inference(report: Report, path: Path) -> None:
    """Write a PNG: latency and throughput against the size of the batch."""
    from matplotlib.figure import Figure

    batches = [row.batch for row in report.rows]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(batches, [row.p50_ms for row in report.rows], "o-", color="tab:blue", label="latency, p50")
    axes.plot(batches, [row.p99_ms for row in report.rows], "o:", color="tab:blue", label="latency, p99")
    axes.set(xscale="log", yscale="log", xlabel="images in a batch", ylabel="milliseconds")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    other = axes.twinx()
    rates = [row.images_per_second for row in report.rows]
    other.plot(batches, rates, "s-", color="tab:red", label="images a second")
    other.set(ylabel="images a second", ylim=(0, None))
    axes.set_title(f"{report.model}, {report.dtype}, {report.device}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
