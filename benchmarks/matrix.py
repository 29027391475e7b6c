"""What the compilers of GPUs and TPUs make of every strategy: the tables of docs/results_accelerators.md.

    python -m benchmarks.matrix --out matrix.jsonl [--jobs 2] [--model NAME] [--on CLUSTER] [--strategy NAME]
    python -m benchmarks.matrix --out matrix.jsonl --fitting fitting.jsonl --page docs/results_accelerators.md

Each cell is one `jaxnet plan --on ... --json` in a process of its own, because a compiler may end its process. Cells
that are in the file are not made again, but for those that failed, so the same command goes on after an interruption;
all take hours. Needs the compilers: make compilers.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compiling import ROOT, add_rows, environment, last_words, read_rows, version
from benchmarks.fitting import tables
from jaxnet.comm import AUTO, STRATEGIES, named_strategy
from jaxnet.cost.accelerators import Cluster
from jaxnet.errors import InputError

CLUSTERS = ("h100:2x8", "v5e:4x4", "v5e:4x4/2", "v5p:2x2x4")
_WITH_OPTIONS = {"v5p": ("ddp with sparse_cores",), "v6e": ("ddp with sparse_cores",)}
_LIMIT_SECONDS = 1800
_PAGE = """\
# Results: what compilers for GPUs and TPUs make of every strategy

Written by `python -m benchmarks.matrix`, on a machine without any of them. {versions}. Nothing was run: *planned* and
*found* are collectives, *beside* the share of the bytes of gradients and parameters that travel while something else is
computed, *exposed* and *step* milliseconds of a model at the rates of the data sheet
([accelerators](design/accelerators.md) has its assumptions), *GiB* what a device needs. A strategy or cluster that is
not in a table has not been tried with that model yet. Where a model computes in bfloat16, `xla` sums the gradients of
its kernels in bfloat16, too, which is half the bytes of an exact strategy.
"""


class Model(NamedTuple):
    """A config, with a batch of so many examples a device and further settings."""

    title: str
    config: str
    batch: int
    settings: tuple[str, ...] = ()


MODELS = {
    "digits": Model("The CNN of configs/digits.py, 64 a device", "configs/digits.py", 64),
    "resnet50": Model("ResNet-50 in bfloat16, 64 a device", "configs/imagenet_resnet50.py", 64),
    # Without dropout, whose random numbers take a TPU's compiler minutes.
    "transformer": Model(
        "The transformer of configs/text_transformer.py, 64 a device, without dropout",
        "configs/text_transformer.py",
        64,
        ("model.dropout=0",),
    ),
}


class Cell(NamedTuple):
    """A model under a strategy on a cluster; behind `with`, what the strategy is compiled with."""

    model: str
    cluster: str
    strategy: str


def cells(models: Sequence[str], clusters: Sequence[str], strategies: Sequence[str]) -> Iterator[Cell]:
    """All of them, the quick models first."""
    for model, cluster in itertools.product(models, clusters):
        more = [each for each in _WITH_OPTIONS.get(cluster.partition(":")[0], ()) if each.split()[0] in strategies]
        for strategy in [*strategies, *more]:
            yield Cell(model, cluster, strategy)


def compiled(cell: Cell) -> dict[str, Any]:
    """What `jaxnet plan` says of it, in short; or how it ended."""
    model = MODELS[cell.model]
    devices = Cluster.named(cell.cluster).devices
    strategy, _, options = cell.strategy.partition(" with ")
    own = [f"strategy={strategy}", f"batch_size={model.batch * devices}", f"compiler_options={options}"]
    settings = [*model.settings, *own]
    command = ["-m", "jaxnet", "plan", "--config", str(ROOT / model.config), "--on", cell.cluster, "--json", *settings]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        return {**cell._asdict(), "jax": version(), "error": f"no end after {_LIMIT_SECONDS} s"}
    row: dict[str, Any] = {**cell._asdict(), "jax": version(), "seconds": round(time.monotonic() - begun, 1)}
    if done.returncode:
        return {**row, "error": last_words(done)}
    return {**row, **_short(json.loads(done.stdout))}


def _short(plan: dict[str, Any]) -> dict[str, Any]:
    found, memory, modelled = plan["found"], plan["memory"], plan["modelled"]
    return {
        "planned": len(plan["planned"]),
        "missing": len(plan["missing"]),
        "collectives": len(found),
        "beside": sum(1 for each in found if each["operations_beside"]),
        "hidden_share": plan["hidden_share"],
        "exposed_seconds": modelled["exposed_seconds"],
        "step_seconds": modelled["step_seconds"],
        "memory_bytes": memory["arguments"] + memory["temporary"],
        "fits": memory["fits"],
    }


_FITTING = """\
## The largest batch of a device

With how many examples a training step fits, SGD with momentum: the largest power of two, compiled, and twice as many do
not fit. In brackets what it needs. Written by `python -m benchmarks.fitting`.
"""


def page(rows: Sequence[dict[str, Any]], fitting: Sequence[dict[str, Any]] = ()) -> str:
    """The tables, a section a model and cluster; and what fits."""
    versions = ", ".join(f"JAX {version}" for version in sorted({row["jax"] for row in rows if "jax" in row}))
    parts = [_PAGE.format(versions=versions)]
    for name, model in MODELS.items():
        own = [row for row in rows if row["model"] == name]
        if own:
            parts.append("\n".join([f"## In short: {model.title.replace('The ', 'the ')}", "", *_in_short(own)]) + "\n")
    for name, model in MODELS.items():
        for cluster in CLUSTERS:
            own = [row for row in rows if (row["model"], row["cluster"]) == (name, cluster)]
            if own:
                parts.append("\n".join([f"## {model.title}, on {cluster}", "", *_table(own)]) + "\n")
    if fitting:
        parts.append("\n".join([_FITTING, *tables(fitting)]) + "\n")
    return "\n".join(parts)


def _in_short(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line a strategy, a column a cluster: the share that travels beside operations, and what is exposed."""
    of = {(row["strategy"], row["cluster"]): row for row in rows}
    clusters = [cluster for cluster in CLUSTERS if any(row["cluster"] == cluster for row in rows)]
    whole = [row for row in rows if row.get("planned") and not row["missing"]]
    planned = [row for row in rows if row.get("planned")]
    yield f"{len(whole)} of {len(planned)} plans were found whole. A cell is the share of bytes beside operations and"
    yield "the milliseconds exposed; `>`: the step is longer than that of `xla`; **bold**: the default.\n"
    yield f"| strategy | {' | '.join(clusters)} |"
    yield f"| --- |{' --- |' * len(clusters)}"
    for strategy in _in_order({row["strategy"] for row in rows}):
        cells = [_cell(of.get((strategy, cluster)), of.get(("xla", cluster))) for cluster in clusters]
        yield f"| {strategy} | {' | '.join(cells)} |"


def _cell(row: dict[str, Any] | None, by_xla: dict[str, Any] | None) -> str:
    if row is None or "error" in row:
        return "not tried" if row is None else "fails"
    longer = by_xla is not None and "error" not in by_xla and row["step_seconds"] > by_xla["step_seconds"]
    lacks = f", lacks {row['missing']}" if row["missing"] else ""
    text = f"{'> ' * longer}{row['hidden_share']:.0%}, {1e3 * row['exposed_seconds']:.2f}{lacks}"
    default = named_strategy(AUTO, platform=Cluster.named(row["cluster"]).accelerator.platform).name
    return f"**{text}**" if row["strategy"] == default else text


def _in_order(strategies: Iterable[str]) -> list[str]:
    order = list(STRATEGIES)
    return sorted(strategies, key=lambda each: (order.index(each.split()[0]), each))


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| strategy | planned | found | collectives beside operations | beside | exposed | step | GiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    by_strategy = {row["strategy"]: row for row in rows}
    for row in map(by_strategy.__getitem__, _in_order(by_strategy)):
        if "error" in row:
            yield f"| {row['strategy']} | {row['error']} | | | | | | |"
            continue
        found = row["planned"] - row["missing"]
        planned = (row["planned"], found) if row["planned"] else ("—", "—")
        yield (
            f"| {row['strategy']} | {planned[0]} | {planned[1]} | {row['beside']} of {row['collectives']} "
            f"| {row['hidden_share']:.0%} | {1e3 * row['exposed_seconds']:.2f} | {1e3 * row['step_seconds']:.2f} "
            f"| {row['memory_bytes'] / 2**30:.2f}{'' if row['fits'] else ', does not fit'} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Make the cells that are missing, or the page of those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a line of JSON for each cell")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="compilers at once; default 1")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="may be repeated; default: all")
    parser.add_argument(
        "--on", action="append", metavar="CLUSTER", help="may be repeated; default: " + ", ".join(CLUSTERS)
    )
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES), help="may be repeated; default: all")
    parser.add_argument("--fitting", type=Path, metavar="FILE", help="with --page: what benchmarks.fitting has written")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables of what is there, and end")
    args = parser.parse_args(argv)
    rows = read_rows(args.out)
    if args.page:
        if not rows:
            raise InputError(f"{args.out} has no cells yet; make some first, without --page")
        args.page.write_text(page(rows, read_rows(args.fitting) if args.fitting else ()))
        return 0
    whole = [row for row in rows if row["jax"] == version() and "error" not in row]
    there = {Cell(row["model"], row["cluster"], row["strategy"]) for row in whole}
    wanted = cells(args.model or list(MODELS), args.on or CLUSTERS, args.strategy or list(STRATEGIES))
    add_rows(args.out, [cell for cell in wanted if cell not in there], compiled, args.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
