"""Are the predictions of `jaxnet tune` right, and is what it finds the fastest of all plans? Tables of results.md.

    python -m benchmarks.foresight --out foresight.jsonl [--model NAME] [--layout NAME] [--link NAME]
    python -m benchmarks.foresight --out foresight.jsonl --table
    python -m benchmarks.foresight --out foresight.jsonl --svg foresight.svg

A cell is a model, on a layout of processes and devices, joined by a link, as in `benchmarks.choices`. Cells that are in
the file are not measured again. In one job:

1. `jaxnet tune`'s search finds a plan. The parts that it measured are kept, and for how long it ran programs.
2. All plans of a finer search, with more sizes of buckets, are timed: two rounds each, and two more in opposite order,
   as the machine may become slower meanwhile. Buckets under 400 KiB are left out: hundreds of messages, and in pieces
   as many programs to compile.
3. The fastest of them, the plan of 1., the default and XLA's own are timed again, in interleaved rounds: so the fastest
   of many does not owe its place to a moment in which the machine was quiet.

The table predicts all plans from the parts, from XLA's plan and from three sizes of buckets for each way to run a step:
there, and on slower links, of which nothing but the rate is known. So another model of a step can be judged by the same
measurements.

At 1 Gbit/s a cell of two hosts of a core takes 11 to 18 minutes, one of four hosts 32; over slower links longer.
Compiled programs are kept in runs/compile_cache, for the next link too. Run nothing beside it.
"""

import argparse
import contextlib
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.choices import LAYOUTS, Cell, Layout, add_cells, answer, fill, joined
from benchmarks.compiling import ROOT, read_rows
from jaxnet.figures import curve_style, new_figure, write_figure

if TYPE_CHECKING:
    from jaxnet.cost.workloads import Workload

_BUCKETS = (
    *(
        f"{count}KiB"
        for count in (416, 480, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2560, 3072, 3584)
    ),
    *(f"{count}MiB" for count in (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 25, 32, 48, 64)),
)
_TEACHERS = (
    "xla",
    *(
        label
        for size in ("1024KiB", "4MiB", "16MiB")  # as `_BUCKETS` has them
        for label in (f"hierarchical:{size}", f"hierarchical:{size}+pieces", f"priority:{size}")
    ),
)
_FROM = "1gbit"
_SLOWER = {"500mbit": 2.0, "250mbit": 4.0}  # times as long for a byte as at _FROM
_FIRST, _LAST = (2, 2), (7, 3)  # rounds, and steps in each
_FINALISTS = 6
_LIMIT_SECONDS = 7200

Row = dict[str, Any]


def work(model: str) -> None:
    """Tune, time all, time the best again; process 0 prints a line of JSON."""
    import jax

    from jaxnet.training.compile_cache import compile_cache

    workload = joined(model)
    with compile_cache(ROOT / "runs/compile_cache"):
        found = _tuned_and_timed(workload)
    if jax.process_index() == 0:
        print(json.dumps(found))


def _tuned_and_timed(workload: "Workload") -> Row:
    from jaxnet.cost.profiles import as_json
    from jaxnet.cost.rounds import interleave
    from jaxnet.cost.steps import TimedProgram, full_step
    from jaxnet.cost.tuning import BY_XLA, candidates, tune

    # 1. The search.
    with _running() as seconds:
        tuned = tune(workload)
    plans = candidates(workload, tuned.default, _BUCKETS)

    def program(label: str) -> TimedProgram:
        return full_step(workload, plans[label].strategy, pieces=plans[label].pieces)

    # 2. All plans, there and back. A program is let go once it is timed: a hundred would not fit into memory.
    once: dict[str, list[float]] = {label: [] for label in plans}
    for label in [*plans, *reversed(plans)]:
        once[label] += interleave({label: program(label)}, *_FIRST)[label]
    # 3. The best again.
    first = sorted(once, key=lambda label: statistics.median(once[label]))[:_FINALISTS]
    last = dict.fromkeys([*first, tuned.best, tuned.default, BY_XLA])
    times = interleave({label: program(label) for label in last}, *_LAST)
    found = {"tuned": tuned.best, "why": tuned.why, "default": tuned.default, "steps": tuned.steps}
    found |= {
        "seconds": sum(seconds),
        "off": tuned.errors,
        "parts": as_json(tuned.parts._replace(unhidden={}, beyond=0.0)),
    }
    return found | {"once": once, "times": times}


@contextlib.contextmanager
def _running() -> Iterator[list[float]]:
    """What is filled, meanwhile, with the seconds for which a tuning runs programs; to compile them does not count."""
    from jaxnet.comm import Launch
    from jaxnet.cost import collectives, measured
    from jaxnet.cost.steps import TimedProgram

    spent: list[float] = []
    running = False

    def clocked(call: Callable[..., Any]) -> Callable[..., Any]:
        def clock(*args: Any, **named: Any) -> Any:
            nonlocal running
            if running:  # `priority` measures its order within its first step
                return call(*args, **named)
            running, begun = True, time.perf_counter()
            found = call(*args, **named)
            running = False
            spent.append(time.perf_counter() - begun)
            return found

        return clock

    def measured_times(*args: Any) -> Any:
        found = messages(*args)
        times = found[1].mean(0)
        others = 1 + collectives._WARMUPS  # a check, and those that warm up, which are not among the times
        spent.append(times.sum() + others * times.mean())
        return found

    messages = collectives.measured_times
    with (
        mock.patch.object(TimedProgram, "run", clocked(TimedProgram.run)),
        mock.patch.object(TimedProgram, "seconds", clocked(TimedProgram.seconds)),
        mock.patch.object(measured, "measured_times", measured_times),
        mock.patch.object(measured, "_processor_part", clocked(measured._processor_part)),
        mock.patch.object(Launch, "timed", clocked(Launch.timed)),
    ):
        yield spent


def measured(cell: Cell) -> Row:
    """The row of a cell."""
    return answer(cell, ["-m", "benchmarks.foresight", "--out", "-", "--work", cell.model], _LIMIT_SECONDS)


# ---- What was found, in Markdown ------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Which plan is the fastest; and how far off predictions were."""
    yield from _choices(rows)
    yield ""
    yield from _predictions(rows)


def _choices(rows: Sequence[Row]) -> Iterator[str]:
    """Milliseconds a step, medians over the last rounds; default and the tuned plan over the fastest. *Worth* is for
    how many steps of the default a tuning ran programs; *it was off* by that in the median, of plans that it timed."""
    choice = ["ms", "over fastest"]
    head = ["model, layout, link", "plans", "fastest", "ms", "default", *choice, "tuner's", *choice]
    head += ["worth", "it was off", "`xla`"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        ms = {label: 1e3 * statistics.median(times) for label, times in row["times"].items()}
        best = min(ms, key=ms.__getitem__)
        figures = [row["cell"], str(len(row["once"])), f"`{best}`", f"{ms[best]:.0f}"]
        for each in (row["default"], row["tuned"]):
            figures += [f"`{each}`", f"{ms[each]:.0f}", f"{ms[each] / ms[best]:.2f}"]
        worth = 1e3 * row["seconds"] / ms[row["default"]]
        off = f"{statistics.median(row['off']):.1%}" if row["off"] else "none timed"
        figures += [f"{worth:.0f} steps", off, f"{ms['xla']:.0f}"]
        yield f"| {' | '.join(figures)} |"


def _predictions(rows: Sequence[Row]) -> Iterator[str]:
    """Of plans that nothing was learned from. *rank* is Spearman's correlation of predicted and timed steps; *of its
    rounds*, that of the first half of the rounds with the second: more cannot be predicted."""
    from scipy.stats import spearmanr

    head = ["model, layout, link", "plans", "off, median", "90 % within", "rank", "of its rounds"]
    head += ["predicted to be the fastest", "it takes over the fastest"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    all_off: list[float] = []
    for title, row, predicted in _predicted(rows):
        seconds = _timed(row, predicted)
        off = [abs(predicted[label] / seconds[label] - 1) for label in predicted]
        all_off += off
        rank = spearmanr(list(predicted.values()), list(seconds.values()))[0]
        count = len(next(iter(row["once"].values()))) // 2
        halves = [(row["once"][label][:count], row["once"][label][count:]) for label in predicted]
        rounds = spearmanr([[statistics.median(half) for half in both] for both in halves])[0]
        promised = min(predicted, key=predicted.__getitem__)
        yield (
            f"| {title} | {_off(off)} | {rank:.2f} | {rounds:.2f} | `{promised}` "
            f"| {seconds[promised] / min(seconds.values()):.2f} |"
        )
    yield f"| all | {_off(all_off)} | | | | |"


def _off(errors: Sequence[float]) -> str:
    return f"{len(errors)} | {statistics.median(errors):.1%} | {statistics.quantiles(errors, n=10)[-1]:.1%}"


def _predicted(rows: Sequence[Row]) -> Iterator[tuple[str, Row, dict[str, float]]]:
    """Titles, rows, and what is predicted for the plans of a row: by its own parts, and by those of a faster link."""
    of = {row["cell"]: row for row in rows}
    for row in rows:
        yield row["cell"], row, _steps(row, [label for label in row["once"] if label not in _TEACHERS])
        place, _, link = row["cell"].rpartition(" ")
        faster = of.get(f"{place} {_FROM}")
        if link in _SLOWER and faster:
            yield f"{row['cell']}, from {_FROM}", row, _steps(faster, row["once"], _SLOWER[link])


def _steps(row: Row, labels: Iterable[str], slower: float = 1.0) -> dict[str, float]:
    """Predicted seconds a step, if a byte took so many times as long between hosts as it did."""
    from jaxnet.cost.prediction import between_slower_hosts, calibrated, predicted_step
    from jaxnet.cost.profiles import as_parts
    from jaxnet.cost.tuning import plan_of

    model, layout, _ = row["cell"].split()
    workload = _emulated(model, LAYOUTS[layout])
    teachers = _timed(row, [label for label in _TEACHERS if label in row["once"]])
    taught = [(plan_of(label, workload), seconds) for label, seconds in teachers.items()]
    parts = between_slower_hosts(calibrated(as_parts(row["parts"]), taught, workload), slower)
    return {label: predicted_step(parts, plan_of(label, workload), workload).seconds for label in labels}


@functools.cache
def _emulated(model: str, layout: Layout) -> "Workload":
    """The same model on so many emulated devices of this process."""
    import jax

    from jaxnet.comm import make_mesh
    from jaxnet.cost.workloads import named_workload

    jax.config.update("jax_num_cpu_devices", max(each.processes * each.devices for each in LAYOUTS.values()))
    return named_workload(model, make_mesh(layout.processes, jax.devices()[: layout.processes * layout.devices]))


def _timed(row: Row, labels: Iterable[str]) -> dict[str, float]:
    """Seconds a step of these plans, medians over the rounds."""
    return {label: statistics.median(row["once"][label]) for label in labels}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Every prediction beside its step, but for those that were learned from."""
    figure = new_figure(6, 5)
    axis = figure.subplots()
    all_ms: list[float] = []
    for index, (title, row, predicted) in enumerate(_predicted(rows)):
        timed = [1e3 * seconds for seconds in _timed(row, predicted).values()]
        said = [1e3 * seconds for seconds in predicted.values()]
        style = curve_style(index)
        all_ms += [*timed, *said]
        axis.scatter(timed, said, s=10, label=title, color=style["color"], marker=style["marker"])
    ends = [0.9 * min(all_ms), 1.1 * max(all_ms)]
    low, high = ([part * end for end in ends] for part in (0.88, 1.12))
    axis.plot(ends, ends, color="0.6", linewidth=1)
    axis.fill_between(ends, low, high, color="0.6", alpha=0.2, linewidth=0)
    axis.set(xscale="log", yscale="log", xlabel="ms a step, timed", ylabel="ms a step, predicted; grey: 12 %")
    axis.spines[["right", "top"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7)
    write_figure(figure, [path])


def main() -> None:
    """Measure the cells that are asked for and not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw what is in the file, and measure nothing")
    add_cells(parser)
    parser.add_argument("--work", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work)
    elif args.svg:
        draw(read_rows(args.out), args.svg)
    else:
        fill(args, measured, tables, line=lambda row: list(_choices([row]))[-1])


if __name__ == "__main__":
    main()
