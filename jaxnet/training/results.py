"""A run that was trained: its metrics as a table, its state, its summary, and several runs beside each other."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxnet.comm import Check
from jaxnet.comm.as_html import html_folded, html_line, html_table
from jaxnet.config.run import Config
from jaxnet.cost.tables import aligned
from jaxnet.errors import InputError
from jaxnet.figures import new_figure
from jaxnet.files import read_object
from jaxnet.object_storage.reading import fetched_files
from jaxnet.parallel.state import TrainState
from jaxnet.report.run_files import curve, labels_of, read_metrics
from jaxnet.training.experiment import Experiment
from jaxnet.training.plan import RunPlan


class Table(Sequence[dict[str, Any]]):
    """Rows with named columns, where pandas is not installed. Prints aligned; a notebook shows it as HTML.

    >>> table = Table([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    >>> table["loss"]
    [0.5, 0.25]
    >>> print(table)
    step  loss
       1   0.5
       2  0.25
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = [dict(row) for row in rows]
        self.columns = list(dict.fromkeys(name for row in self._rows for name in row))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """A row by its number, or a column by its name (None where a row has no such value)."""
        return [row.get(key) for row in self._rows] if isinstance(key, str) else self._rows[key]

    def __str__(self) -> str:
        cells = [self.columns, *([_cell(row.get(name)) for name in self.columns] for row in self._rows)]
        return "\n".join(aligned(cells, left=0))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.columns, ([_cell(row.get(name)) for name in self.columns] for row in self._rows))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a pandas DataFrame, or as a `Table` where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return Table(rows)
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True, eq=False)
class Run:
    """What `train` gives back.

    Attributes:
        config: that it was trained with.
        workdir: where it wrote.
        summary: the final figures, as in summary.json.
        experiment: model, optimizer, step and plan.
        state: the last; see `Experiment.evaluate`.
        check: the plan beside the compiled program.
    """

    config: Config
    workdir: Path
    summary: dict[str, Any]
    experiment: Experiment
    state: TrainState = field(repr=False)
    check: Check = field(repr=False)

    @property
    def metrics(self) -> Any:
        """What metrics.jsonl holds, a row a line: a pandas DataFrame, or a `Table` where pandas is not installed."""
        return as_table(read_metrics(self.workdir))

    @property
    def plan(self) -> RunPlan:
        """What a step sends, beside what the compiled program holds. Prints as tables."""
        return replace(self.experiment.plan, check=self.check)

    def _repr_html_(self) -> str:
        """In a notebook: its figures, its curves, and folded what a step sent."""
        return compare([self])._repr_html_() + html_folded("what a step sent", self.plan._repr_html_())

    def __repr__(self) -> str:
        test = f", loss {self.summary['loss']:.4f}" if self.summary.get("loss") is not None else ""
        return f"<Run {self.workdir}: {self.summary['steps']} steps, {self.summary['strategy']}{test}>"


_COLUMNS = ("examples_per_second", "wire_bytes_per_step", "data_wait_fraction", "seconds")
_FIGURES = ("steps", "loss", *_COLUMNS)


def _metrics(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The metrics of all runs; of runs from before there were tasks, loss and accuracy."""
    names = [name for summary in summaries.values() for name in summary.get("metrics", ("loss", "accuracy"))]
    return list(dict.fromkeys(names))


def _by_axis(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Bytes of a step by axis; of runs from before they were written down, and of `xla`, nothing."""
    sent = summary.get("wire_bytes_per_axis", {})
    return sent if isinstance(sent, Mapping) else {}


class Comparison:
    """Runs beside each other: final figures, differences to the first run, and curves.

    Attributes:
        summaries: by label, what each run's summary.json holds.
        metrics: by label, the lines of each run's metrics.jsonl.
    """

    def __init__(self, summaries: Mapping[str, Mapping[str, Any]], metrics: Mapping[str, list[dict[str, Any]]]) -> None:
        self.summaries, self.metrics = dict(summaries), dict(metrics)

    @property
    def table(self) -> Any:
        """A row a run: its final figures, and behind `examples_per_second` and bytes the ratio to the first run."""
        return as_table(self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The same as plain values."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        first = next(iter(self.summaries.values()))
        for label, summary in self.summaries.items():
            row: dict[str, Any] = {"run": label, "strategy": summary["strategy"]}
            for name in ("steps", *_metrics(self.summaries), *_COLUMNS):
                row[name] = summary.get(name)
                if name in ("examples_per_second", "wire_bytes_per_step"):
                    both = row[name] is not None and first.get(name)
                    row[f"{name} ratio"] = row[name] / first[name] if both else None
            for axis in dict.fromkeys(axis for each in self.summaries.values() for axis in _by_axis(each)):
                row[f"wire_bytes over {axis}"] = _by_axis(summary).get(axis, 0) if _by_axis(summary) else None
            if summary.get("loss") is not None and first.get("loss") is not None:
                row["loss difference"] = summary["loss"] - first["loss"]
            yield row

    @property
    def differences(self) -> Any:
        """Training loss at each logged step: a column a run, and its difference to the first run."""
        losses = {label: dict(curve(lines, "train", "loss")) for label, lines in self.metrics.items()}
        labels = list(losses)
        rows = []
        for step in sorted({step for points in losses.values() for step in points}):
            row: dict[str, Any] = {"step": step} | {label: losses[label].get(step) for label in labels}
            for label in labels[1:]:
                here, there = losses[label].get(step), losses[labels[0]].get(step)
                row[f"{label} - {labels[0]}"] = None if here is None or there is None else here - there
            rows.append(row)
        return as_table(rows)

    def figure(self) -> Any:
        """The curves, as a matplotlib Figure: training loss, and the last of the task's metrics on the test, by step.

        Raises:
            InputError: matplotlib is not installed.
        """
        figure = new_figure(9, 3.2)
        last = _metrics(self.summaries)[-1:] or ["loss"]
        for axes, (split, name) in zip(figure.subplots(1, 2), (("train", "loss"), ("test", last[0])), strict=True):
            for label, lines in self.metrics.items():
                points = curve(lines, split, name)
                axes.plot([step for step, _ in points], [value for _, value in points], label=label)
            axes.set_xlabel("step")
            axes.set_ylabel(f"{split} {name}")
            axes.legend(frameon=False)
        return figure

    def _cells(self) -> list[list[str]]:
        """The table on its side: a figure a row, a run a column."""
        rows, tested = self.rows, {"loss", "loss difference", *_metrics(self.summaries)}
        names = dict.fromkeys(name for row in rows for name in row if name != "run")
        figures = [
            [f"test {name}" if name in tested else name, *(_cell(row.get(name)) for row in rows)] for name in names
        ]
        return [["", *(row["run"] for row in rows)], *figures]

    def __str__(self) -> str:
        return "\n".join(aligned(self._cells(), left=1))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *figures = self._cells()
        table = html_table(head, figures)
        try:
            figure = self.figure()
        except InputError as error:
            return table + html_line(f"without curves: {error}")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        return table + drawn.getvalue()[drawn.getvalue().index("<svg") :]


def compare(runs: Mapping[str, Run | str | Path] | Sequence[Run | str | Path]) -> Comparison:
    """Runs beside each other, by label: a table, and in a notebook curves too.

    Args:
        runs: what `train` gave, or workdirs of runs that have ended, by label; or in a list, which are called by the
            names of their directories.

    Raises:
        InputError: a workdir holds no run that has ended.
    """
    if not runs:
        raise InputError("compare: wanted at least one run, such as {'xla': run_a, 'ddp': run_b}")
    summaries, metrics = {}, {}
    if not isinstance(runs, Mapping):
        places = [run.workdir if isinstance(run, Run) else Path(run) for run in runs]
        runs = dict(zip(labels_of(places), runs, strict=True))
    for label, run in runs.items():
        summaries[label] = run.summary if isinstance(run, Run) else _read_summary(run)
        metrics[label] = read_metrics(run.workdir if isinstance(run, Run) else run)
    return Comparison(summaries, metrics)


def _read_summary(workdir: str | Path) -> dict[str, Any]:
    path = fetched_files(workdir, "summary.json") / "summary.json"
    try:
        summary = read_object(path)
        if odd := [name for name in _FIGURES if not isinstance(summary.get(name, 0), int | float | None)]:
            raise ValueError(f"its {odd[0]} is no number")
        if not isinstance(summary.get("strategy"), str) or not _are_texts(summary.get("metrics", [])):
            raise ValueError("it does not name a strategy and metrics")
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and path.with_name("config.json").is_file():  # which runs write first
            raise InputError(
                f"{workdir} has no summary.json, so its run has not ended: continue it, leave it out, or see it with "
                f"jaxnet report {workdir} --html FILE"
            ) from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read: {reason}; wanted the workdir of a run") from error
    return summary


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
