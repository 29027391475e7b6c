"""How far off the predictions of `jaxnet tune` are, and what it finds: the table of docs/results.md.

    python -m benchmarks.foresight --out foresight.jsonl [--model NAME] [--layout NAME] [--link NAME]
    python -m benchmarks.foresight --out foresight.jsonl --table
    python -m benchmarks.foresight --out carried.jsonl --profiles FOLDER --model NAME --layout 2x1 --link 250mbit
    python -m benchmarks.foresight --out foresight.jsonl --svg foresight.svg

A cell is a model, on a layout of processes and devices, joined by a link, as in `benchmarks.choices`. Cells that are in
the file are not measured again. With --profiles steps at one rate are predicted from what was measured at another.
Run nothing beside it.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.choices import Cell, add_cells, answer, fill
from benchmarks.compiling import read_rows
from jaxnet.cost.shapes import SIZES
from jaxnet.figures import curve_style, new_figure, write_figure

_FROM = "1gbit"


def tuned(cell: Cell, *more: str) -> dict[str, Any]:
    """What `jaxnet tune` says there."""
    model = ["--model", cell.model] if cell.model in SIZES else ["--config", f"configs/{cell.model}.py"]
    return answer(cell, ["-m", "jaxnet", "tune", "--json", *model, *more])


def carried(cell: Cell, profiles: Path) -> dict[str, Any]:
    """What was measured at 1 Gbit/s says of steps at another rate, beside those that are timed there.

    Of what is timed there predictions know nothing, but for the number that the rate is.
    """
    profile = str(profiles.resolve() / f"{cell.model}-{cell.layout}.json")
    # 1. Measure at 1 Gbit/s, once for all rates.
    if not Path(profile).exists():
        tuned(cell._replace(link=_FROM), "--profile", profile)
    # 2. Predict.
    slower = str(1000 / float(cell.link.removesuffix("mbit")))
    said = tuned(cell, "--profile", profile, "--slower", slower)
    predicted = {row["label"]: row["predicted"] for row in said["rows"]}
    # 3. Time there what a tuning of its own times.
    found = tuned(cell)
    rows = [{**row, "predicted": predicted[row["label"]], "learned": False} for row in found["rows"]]
    return {"cell": cell.name, "from": _FROM, "rows": rows, "predicted_best": said["best"]}


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows in Markdown, and over all plans that were timed and not learned from, how far predictions were off."""
    head = ["model, layout, link", "best plan", "ms", "default", "`xla`", "predicted, timed", "steps", "off", "at most"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    off: list[float] = []
    for row in rows:
        measured = {each["label"]: each["measured"] * 1e3 for each in row["rows"] if each["measured"]}
        own = [abs(each["predicted"] / each["measured"] - 1) for each in row["rows"] if _held_out(each)]
        off += own
        yield (
            f"| {row['cell']} | `{row['best']}` | {measured[row['best']]:.0f} | {measured[row['default']]:.0f} "
            f"| {measured['xla']:.0f} | {len(row['rows'])}, {len(measured)} | {row['steps']} "
            f"| {statistics.median(own):.0%} | {max(own):.0%} |"
        )
    yield _in_all(off)


def carried_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was predicted from another rate, in Markdown; `rank`: Spearman's correlation over the plans."""
    from scipy.stats import spearmanr

    head = ["model, layout, link", "plans", "off", "at most", "rank", "the plan predicted best", "the fastest timed"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    off: list[float] = []
    for row in rows:
        timed = {each["label"]: each for each in row["rows"] if each["measured"]}
        own = [abs(each["predicted"] / each["measured"] - 1) for each in timed.values()]
        off += own
        rank = spearmanr(*zip(*((each["predicted"], each["measured"]) for each in timed.values()), strict=True))[0]
        promised, best = (min(timed, key=lambda label: timed[label][name]) for name in ("predicted", "measured"))
        ms = {label: f"`{label}` {1e3 * timed[label]['measured']:.0f}" for label in (promised, best)}
        yield (
            f"| {row['cell']}, from {row['from']} | {len(own)} | {statistics.median(own):.0%} | {max(own):.0%} "
            f"| {rank:.2f} | {ms[promised]} | {ms[best]} |"
        )
    yield _in_all(off)


def _in_all(off: Sequence[float]) -> str:
    ninth, median = statistics.quantiles(off, n=10)[-1], statistics.median(off)
    return f"\n{len(off)} predictions: off by {median:.0%} in the median, 90 % of them by at most {ninth:.0%}."


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Every prediction beside its step, but for those that were learned from."""
    figure = new_figure(6, 5)
    axis = figure.subplots()
    all_ms: list[float] = []
    for index, row in enumerate(rows):
        points = [(each["measured"] * 1e3, each["predicted"] * 1e3) for each in row["rows"] if _held_out(each)]
        label = row["cell"] + (f", from {row['from']}" if "from" in row else "")
        style = curve_style(index)
        timed, predicted = zip(*points, strict=True)
        all_ms += [*timed, *predicted]
        axis.scatter(timed, predicted, s=20, label=label, color=style["color"], marker=style["marker"])
    ends = [0.9 * min(all_ms), 1.1 * max(all_ms)]
    low, high = ([part * end for end in ends] for part in (0.88, 1.12))
    axis.plot(ends, ends, color="0.6", linewidth=1)
    axis.fill_between(ends, low, high, color="0.6", alpha=0.2, linewidth=0)
    axis.set(xscale="log", yscale="log", xlabel="ms a step, timed", ylabel="ms a step, predicted; grey: 12 %")
    axis.spines[["right", "top"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7)
    write_figure(figure, [path])


def _held_out(row: dict[str, Any]) -> bool:
    return row["measured"] is not None and not row["learned"]


def main() -> None:
    """Measure the cells that are asked for and not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help=f"predict from what was measured at {_FROM}")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw what is in the file, and measure nothing")
    add_cells(parser)
    args = parser.parse_args()
    if args.svg:
        draw(read_rows(args.out), args.svg)
    elif args.profiles:
        row_of = lambda cell: carried(cell, args.profiles)  # noqa: E731
        fill(args, row_of, carried_table, line=lambda row: "\n".join(carried_table([row])))
    else:
        fill(args, tuned, table, line=lambda row: f"{row['cell']}: {row['best']}: {row['why']}")


if __name__ == "__main__":
    main()
