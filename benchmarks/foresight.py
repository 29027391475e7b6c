"""How far off the predictions of `jaxnet tune` are, and what it finds: the table of docs/results.md.

    python -m benchmarks.foresight --out foresight.jsonl [--model NAME] [--layout NAME] [--link NAME]
    python -m benchmarks.foresight --out foresight.jsonl --table

A cell is a model, on a layout of processes and devices, joined by a link, as in `benchmarks.choices`. Cells that are in
the file are not measured again. Run nothing beside it.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.choices import Cell, add_cells, answer, fill
from jaxnet.cost.shapes import SIZES


def tuned(cell: Cell) -> dict[str, Any]:
    """What `jaxnet tune` says there."""
    model = ["--model", cell.model] if cell.model in SIZES else ["--config", f"configs/{cell.model}.py"]
    return answer(cell, ["-m", "jaxnet", "tune", "--json", *model])


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
    add_cells(parser)
    fill(parser.parse_args(), tuned, table, line=lambda row: f"{row['cell']}: {row['best']}: {row['why']}")


if __name__ == "__main__":
    main()
