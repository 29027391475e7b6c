"""What a run has written to its workdir, read for a report: every file but the metrics may be missing."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxnet.checkpoints.files import CheckpointFiles
from jaxnet.errors import InputError
from jaxnet.files import parse_object, read_lines, read_object
from jaxnet.object_storage.reading import fetched_files
from jaxnet.object_storage.steps import STEPS
from jaxnet.object_storage.store import remote_url
from jaxnet.report.goodput import Goodput, goodput, read_ledger
from jaxnet.report.timeline import Timeline, timeline
from jaxnet.report.trace import read_traces


class SavedStep(NamedTuple):
    """A checkpoint.

    Attributes:
        step: after which it was saved.
        bytes: of its files.
        time: when, in seconds since 1970.
    """

    step: int
    bytes: int
    time: float


@dataclass(frozen=True)
class RunFiles:
    """What is known of a run.

    Attributes:
        label: what it is called in a report.
        metrics: the lines of metrics.jsonl, by step.
        config: config.json, one key path a line.
        summary: summary.json; empty while it trains.
        plan: plan.json: what a step sends, and where it ran.
        goodput: where the time went.
        timeline: a step from a trace of the profiler.
        saved: the checkpoints that are there.
        notes: what could not be read, and why.
    """

    label: str
    metrics: Sequence[dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    plan: dict[str, Any]
    goodput: Goodput | None = None
    timeline: Timeline | None = None
    saved: Sequence[SavedStep] = ()
    notes: Sequence[str] = ()


def read_run(label: str, workdir: str | Path) -> RunFiles:
    """Everything that a run has written so far.

    Raises:
        InputError: this is the workdir of no run, or its metrics cannot be read.
    """
    metrics, notes = read_metrics(workdir), list[str]()

    def given(name: str) -> dict[str, Any]:
        try:
            return read_object(fetched_files(workdir, name) / name)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, InputError) as error:
            notes.append(f"{name} cannot be read: {error}")
            return {}

    config, summary, plan = (given(f"{name}.json") for name in ("config", "summary", "plan"))
    account = made = None
    try:
        account = goodput(read_ledger(fetched_files(workdir, "ledger.jsonl") / "ledger.jsonl"))
    except (OSError, InputError) as error:
        notes.append(f"ledger.jsonl cannot be read: {error}")
    saved: list[SavedStep] = []
    if not remote_url(workdir):
        saved = list(_saved(Path(workdir) / STEPS))
        if (Path(workdir) / "profile").is_dir():
            try:
                mesh = {axis: size for axis, size in summary.get("mesh", {}).items() if isinstance(size, int)}
                made = timeline(read_traces(Path(workdir)), axis_sizes=mesh)
            except (InputError, AttributeError) as error:
                notes.append(f"its traces cannot be read: {error}")
    return RunFiles(label, metrics, config, summary, plan, account, made, saved, notes)


def _saved(folder: Path) -> "list[SavedStep]":
    if not folder.is_dir():
        return []
    files = CheckpointFiles(folder)
    places = [(step, place) for step in files.listed() if (place := files.path(step)).is_dir()]
    return [SavedStep(step, _bytes(place), place.stat().st_mtime) for step, place in places]


def _bytes(folder: Path) -> int:
    places = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sum(place.lstat().st_size for place in places)


# ---- Metrics --------------------------------------------------------------------------------------------


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, by step. Of a step that was run again, the later line counts.

    Raises:
        InputError: there is no such file, or it is no run's.
    """
    path = fetched_files(workdir, "metrics.jsonl") / "metrics.jsonl"
    by_step: dict[tuple[int, str], dict[str, Any]] = {}
    try:
        for number, line in read_lines(path):
            values = _metrics_of(number, line)
            by_step[values["step"], values["split"]] = values
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; wanted the workdir of a run") from error
    except ValueError as error:
        raise InputError(f"{path} is no run's metrics: {error}") from error
    return sorted(by_step.values(), key=lambda line: line["step"])


def _metrics_of(number: int, line: bytes) -> dict[str, Any]:
    try:
        values = parse_object(line)
        step, split = values.get("step"), values.get("split")
        if type(step) is not int or not isinstance(split, str):
            raise ValueError("it has no step and split")
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    return values


def curve(lines: Sequence[dict[str, Any]], split: str, name: str) -> list[tuple[float, float]]:
    """(step, value) of a metric on one split; what is no finite number is left out.

    >>> curve([{"step": 1, "split": "test", "loss": 2.0}, {"step": 2, "split": "test", "loss": None}], "test", "loss")
    [(1, 2.0)]
    """
    return [
        (line["step"], value)
        for line in lines
        if line["split"] == split
        and isinstance(value := line.get(name), int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    ]


def labels_of(workdirs: Sequence[Path]) -> list[str]:
    """What runs are called in a report: the names of their directories, or whole paths where those are alike.

    >>> labels_of([Path("runs/a"), Path("runs/b")]), labels_of([Path("x/a"), Path("y/a")])
    (['a', 'b'], ['x/a', 'y/a'])
    """
    names = [workdir.name or str(workdir) for workdir in workdirs]
    return names if len({*names}) == len(names) else list(map(str, workdirs))
