"""How far off the predictions of `jaxnet tune` are, and what it finds: the table of docs/results.md.

    python -m benchmarks.foresight --out foresight.jsonl [--model NAME] [--layout NAME] [--link NAME]
    python -m benchmarks.foresight --out foresight.jsonl --table

A cell is a model, on a layout of processes and devices, joined by a link, as in `benchmarks.choices`. Cells that are in
the file are not measured again. Run nothing beside it.
"""

import argparse
import json
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.choices import LAYOUTS, LINKS, MODELS, Cell, cells, job
from benchmarks.compiling import ROOT, read_rows
from jaxnet.cost.shapes import SIZES

_LIMIT_SECONDS = 1500


def tuned(cell: Cell) -> dict[str, Any]:
    """What `jaxnet tune` says there."""
    model = ["--model", cell.model] if cell.model in SIZES else ["--config", f"configs/{cell.model}.py"]
    command = job(cell, ["-m", "jaxnet", "tune", "--json", *model])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] ")]
    if "{" not in lines:
        raise SystemExit(f"{cell.name}: no result\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return {"cell": cell.name, **json.loads("\n".join(lines[lines.index("{") :]))}


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
    ninth, median = statistics.quantiles(off, n=10)[-1], statistics.median(off)
    yield f"\n{len(off)} predictions: off by {median:.0%} in the median, 90 % of them by at most {ninth:.0%}."


def _held_out(row: dict[str, Any]) -> bool:
    return row["measured"] is not None and not row["learned"]


def main() -> None:
    """Measure the cells that are asked for and not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--layout", action="append", choices=LAYOUTS)
    parser.add_argument("--link", action="append", choices=LINKS)
    parser.add_argument("--table", action="store_true", help="print the file as a table, and measure nothing")
    args = parser.parse_args()
    rows = {row["cell"]: row for row in read_rows(args.out)}
    if args.table:
        print("\n".join(table(list(rows.values()))))
        return
    for cell in cells(args.model or MODELS, args.layout or list(LAYOUTS), args.link or LINKS):
        if cell.name not in rows:
            row = tuned(cell)
            with args.out.open("a") as file:
                print(json.dumps(row), file=file)
            print(f"{cell.name}: {row['best']}: {row['why']}", flush=True)


if __name__ == "__main__":
    main()
