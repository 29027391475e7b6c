"""Is the plan that `jaxnet tune` finds as fast as the fastest of all? Every plan is timed: a table of docs/results.md.

    python -m benchmarks.sweep --out sweep.jsonl [--model NAME] [--layout NAME] [--link NAME]
    python -m benchmarks.sweep --out sweep.jsonl --table

A cell is a model, on a layout of processes and devices, joined by a link, as in `benchmarks.choices`. In one job:

1. `jaxnet tune`'s search finds a plan.
2. All plans of a finer search, with more sizes of buckets, are timed in some steps each. Those of buckets
   under 400 KiB are left out: hundreds of messages, and in pieces as many programs to compile.
3. The fastest of them, the plan of 1., the default and XLA's own are timed again, in interleaved rounds: so the fastest
   of many does not owe its place to a moment in which the machine was quiet.

A cell takes more than ten minutes on a core a host. Run nothing beside it.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.choices import Cell, add_cells, answer, fill, joined

_BUCKETS = (
    *(
        f"{count}KiB"
        for count in (416, 480, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2560, 3072, 3584)
    ),
    *(f"{count}MiB" for count in (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 25, 32, 48, 64)),
)
_FIRST, _LAST = (1, 3), (7, 3)  # rounds, and steps in each
_FINALISTS = 6
_LIMIT_SECONDS = 7200


def work(model: str) -> None:
    """Tune, time all, time the best again; process 0 prints a line of JSON."""
    import jax

    from jaxnet.cost.rounds import interleave
    from jaxnet.cost.steps import TimedProgram, full_step
    from jaxnet.cost.tuning import BY_XLA, candidates, plan_of, tune

    workload = joined(model)

    def program(label: str) -> TimedProgram:
        plan = plan_of(label, workload)
        return full_step(workload, plan.strategy, pieces=plan.pieces)

    # 1. The search.
    tuned = tune(workload)
    # 2. All plans. A program is let go once it is timed, as a hundred of them would not fit into memory.
    once = {}
    for label in candidates(workload, tuned.default, _BUCKETS):
        [once[label]] = interleave({label: program(label)}, *_FIRST)[label]
    # 3. The best again.
    first = sorted(once, key=once.__getitem__)[:_FINALISTS]
    last = dict.fromkeys([*first, tuned.best, tuned.default, BY_XLA])
    times = interleave({label: program(label) for label in last}, *_LAST)
    if jax.process_index() == 0:
        found = {"tuned": tuned.best, "default": tuned.default, "steps": tuned.steps, "once": once, "times": times}
        print(json.dumps(found))


def swept(cell: Cell) -> dict[str, Any]:
    """The row of a cell."""
    return answer(cell, ["-m", "benchmarks.sweep", "--out", "-", "--work", cell.model], _LIMIT_SECONDS)


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows in Markdown: ms a step, medians over the last rounds; default and the tuned plan over the fastest."""
    choice = ["ms", "over fastest"]
    head = ["model, layout, link", "plans", "fastest", "ms", "default", *choice, "tuner's", *choice, "`xla`"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        ms = {label: 1e3 * statistics.median(times) for label, times in row["times"].items()}
        best = min(ms, key=ms.__getitem__)
        figures = [row["cell"], str(len(row["once"])), f"`{best}`", f"{ms[best]:.0f}"]
        for each in (row["default"], row["tuned"]):
            figures += [f"`{each}`", f"{ms[each]:.0f}", f"{ms[each] / ms[best]:.2f}"]
        figures.append(f"{ms['xla']:.0f}")
        yield f"| {' | '.join(figures)} |"


def main() -> None:
    """Measure the cells that are asked for and not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    add_cells(parser)
    parser.add_argument("--work", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work)
        return
    fill(args, swept, table, line=lambda row: list(table([row]))[-1])


if __name__ == "__main__":
    main()
