"""What the default strategy chooses, beside the strategies that it could have chosen: the table of docs/results.md.

    python -m benchmarks.choices --out choices.jsonl [--model NAME] [--layout NAME] [--link NAME] [--strategy NAME]

Each cell is one job: a model, on a layout of processes and devices, joined by a link. It times whole steps of all
strategies in interleaved rounds. Cells that are in the file are not measured again, so the same command goes on after
an interruption. Links of a rate need Linux and root, as `jaxnet lab` does. Run nothing beside it.
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.compiling import ROOT, read_rows
from jaxnet.cost.shapes import SIZES

if TYPE_CHECKING:
    from jaxnet.cost.workloads import Workload

MODELS = ("digits", "text_transformer", "dense", "vgg", "odd", "resnet50")
LINKS = ("loopback", "1gbit", "500mbit", "250mbit")
STRATEGIES = ("xla", "per_leaf", "ddp:4MiB", "hierarchical:4MiB", "priority")


class Layout(NamedTuple):
    """So many processes, a host each, with so many devices."""

    processes: int
    devices: int


LAYOUTS = {
    "1x1": Layout(1, 1),
    "1x8": Layout(1, 8),
    "2x1": Layout(2, 1),
    "2x2": Layout(2, 2),
    "4x1": Layout(4, 1),
}


class Cell(NamedTuple):
    """A model on a layout, joined by a link."""

    model: str
    layout: str
    link: str

    @property
    def name(self) -> str:
        """Of a row of the file."""
        return " ".join(self)


def cells(models: Sequence[str], layouts: Sequence[str], links: Sequence[str]) -> Iterator[Cell]:
    """All of them; one process has no link but its own memory."""
    for model, layout, link in itertools.product(models, layouts, links):
        if LAYOUTS[layout].processes > 1 or link == "loopback":
            yield Cell(model, layout, link)


# ---- In a job: time the steps ---------------------------------------------------------------------------


def joined(model: str) -> "Workload":
    """Join the other processes of the job; the model on the devices of all."""
    from jaxnet.cluster.start import start
    from jaxnet.comm import make_mesh
    from jaxnet.config.file import load_config
    from jaxnet.cost.workloads import named_workload
    from jaxnet.training.prepare import workload_of

    start()
    mesh = make_mesh()
    if model in SIZES:
        return named_workload(model, mesh)
    return workload_of(model, load_config(ROOT / f"configs/{model}.py"), mesh)


def work(model: str, strategies: Sequence[str], rounds: int, seconds: float) -> None:
    """Time all strategies; process 0 prints a line of JSON."""
    import jax

    from jaxnet.cost.choice import choice_of
    from jaxnet.cost.rounds import interleave, seconds_a_step, warm_up
    from jaxnet.cost.step_bench import in_pieces, labelled_strategy
    from jaxnet.cost.steps import full_step

    workload = joined(model)
    choice = choice_of(workload)
    chosen = choice.label
    tasks = {
        name: full_step(workload, labelled_strategy(name), pieces=in_pieces(name))
        for name in dict.fromkeys([*strategies, chosen])
    }
    for task in tasks.values():
        warm_up(task)
    slowest = max(seconds_a_step(task, 2) for task in tasks.values())
    steps = max(2, min(30, round(seconds / slowest)))
    times = {name: [1e3 * each for each in found] for name, found in interleave(tasks, rounds, steps).items()}
    if jax.process_index() == 0:
        print(json.dumps({"choice": chosen, "why": choice.why, "steps": steps, "ms": times}))


# ---- Around the jobs ------------------------------------------------------------------------------------


def answer(cell: Cell, arguments: Sequence[str], limit_seconds: float = 1500) -> dict[str, Any]:
    """The row of a cell: the JSON that process 0 prints when Python runs with `arguments` on all hosts.

    Two hosts have a core each.
    """
    layout = LAYOUTS[cell.layout]
    devices = ["--devices-per-process", str(layout.devices)]
    if cell.link == "loopback":
        launch = ["launch", "local", "--processes", str(layout.processes), *devices]
    else:
        own_core = ["--cpus-per-host", "1"] if layout.processes == 2 else []
        launch = ["lab", "--hosts", str(layout.processes), "--rate", cell.link, *devices, *own_core]
    command = [sys.executable, "-m", "jaxnet", *launch, "--", sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_seconds)
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if not re.match(r"\[[1-9]", line)]
    begin = next((number for number, line in enumerate(lines) if line.startswith("{")), None)
    if begin is None:
        raise SystemExit(f"{cell.name}: no result\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found, _ = json.JSONDecoder().raw_decode("\n".join(lines[begin:]))
    return {"cell": cell.name, **found}


def measured(cell: Cell, strategies: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """The row of a cell."""
    given = [part for strategy in strategies for part in ("--strategy", strategy)]
    worker = ["-m", "benchmarks.choices", "--work", cell.model, *given]
    return answer(cell, [*worker, "--rounds", str(rounds), "--seconds", str(seconds)])


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows in Markdown: ms a step, medians over rounds; `auto` over the best and over `xla`."""
    yield "| model, layout, link | `auto` is | ms | best | ms | `xla` | over best | over xla |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        ms = {name: statistics.median(times) for name, times in row["ms"].items()}
        best, own = min(ms, key=ms.__getitem__), ms[row["choice"]]
        yield (
            f"| {row['cell']} | `{row['choice']}` | {own:.1f} | `{best}` | {ms[best]:.1f} | {ms['xla']:.1f} "
            f"| {own / ms[best]:.2f} | {own / ms['xla']:.2f} |"
        )


def of_cell(cell: Cell, strategies: Sequence[str]) -> list[str]:
    """Those that differ there: a step is several programs between processes of one device each alone."""
    from jaxnet.cost.step_bench import in_pieces, name_and_size

    layout = LAYOUTS[cell.layout]
    if layout == Layout(1, 1):
        return ["xla"]
    one_program = layout.devices > 1 or layout.processes == 1
    several = {name for name in strategies if in_pieces(name) or name_and_size(name)[0] == "priority"}
    return [name for name in strategies if not (one_program and name in several)]


def add_cells(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cells."""
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--layout", action="append", choices=LAYOUTS)
    parser.add_argument(
        "--link", action="append", help="loopback or a rate of `jaxnet lab`; default: " + ", ".join(LINKS)
    )
    parser.add_argument("--table", action="store_true", help="print the file as a table, and measure nothing")


def fill(
    args: argparse.Namespace,
    row_of: Callable[[Cell], dict[str, Any]],
    table: Callable[[Sequence[dict[str, Any]]], Iterator[str]],
    line: Callable[[dict[str, Any]], str],
) -> None:
    """Measure the cells that are asked for and not in the file yet; or print its table."""
    rows = {row["cell"]: row for row in read_rows(args.out)}
    if args.table:
        print("\n".join(table(list(rows.values()))))
        return
    for cell in cells(args.model or MODELS, args.layout or list(LAYOUTS), args.link or LINKS):
        if cell.name not in rows:
            row = row_of(cell)
            with args.out.open("a") as file:
                print(json.dumps(row), file=file)
            print(line(row), flush=True)


def main() -> None:
    """Measure the cells that are asked for and not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    add_cells(parser)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of the slowest strategy in a round")
    parser.add_argument("--work", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    strategies = args.strategy or STRATEGIES
    if args.work:
        work(args.work, strategies, args.rounds, args.seconds)
        return
    row_of = lambda cell: measured(cell, of_cell(cell, strategies), args.rounds, args.seconds)  # noqa: E731
    fill(args, row_of, table, line=lambda row: list(table([row]))[-1])


if __name__ == "__main__":
    main()
