"""What sending less costs in accuracy: compressed strategies beside the exact sum, on an emulated mesh.

    python benchmarks/compression_accuracy.py --results digits.jsonl
    python benchmarks/compression_accuracy.py --config configs/fashion_mnist.py --seeds 2 epochs=2
    python benchmarks/compression_accuracy.py --strategy hierarchical --strategy top_k:fraction=0.001 --seeds 1 --json

Trains through train.py, all strategies with the first seed, then all with the next, and compares mean accuracies
on the test split with that of the first strategy. With --results, finished runs are kept, one JSON object a line,
and not made again: the same command continues after an interruption, and one with fewer seeds or strategies prints
what is there. Such a file is for one version of the code.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxnet.comm import named_strategy
from jaxnet.config.file import load_config
from jaxnet.training.trainer import train

LABELS = [
    *("hierarchical", "fp16", "bf16", "int8", "cntk_1bit", "top_k", "powersgd"),
    *("mxnet_2bit", "mxnet_2bit:threshold=0.01"),
]
LIMIT = 0.5  # points of accuracy

Run = dict[str, Any]


class Row(NamedTuple):
    """One strategy over all seeds: bytes that a device sends in a step, accuracies in percent."""

    strategy: str
    wire_bytes: int
    ratio: float
    mean: float
    least: float
    most: float
    difference: float
    within: bool


def runs(args: argparse.Namespace) -> Iterator[Run]:
    """Every run, by seed and strategy; those that the results file lacks are made and added to it."""
    args.results.touch()
    done = [json.loads(line) for line in args.results.read_text().splitlines()]
    shared = {"config": args.config, "overrides": sorted(args.overrides), "mesh": [args.hosts, args.devices_per_host]}
    wanted = [{**shared, "strategy": name, "seed": seed} for seed in range(args.seeds) for name in args.strategy]
    for number, key in enumerate(wanted, 1):
        run = next((run for run in done if key.items() <= run.items()), None)
        if run is None:
            print(f"{number} of {len(wanted)}: {key['strategy']}, seed {key['seed']}", file=sys.stderr)
            run = {**key, **one_run(key)}
            with args.results.open("a") as file:
                file.write(json.dumps(run) + "\n")
        yield run


def one_run(key: Run) -> Run:
    """Train; what there is to know of it."""
    own = [f"strategy={key['strategy']}", f"seed={key['seed']}", f"hosts={key['mesh'][0]}", "log.tensorboard=false"]
    with tempfile.TemporaryDirectory() as workdir:
        summary = train(load_config(key["config"], *key["overrides"], *own), Path(workdir), quiet=True).summary
    if not summary["finished"]:
        sys.exit(f"stopped at step {summary['steps']}; the same command starts this run again")
    return {name: summary[name] for name in ("accuracy", "loss", "steps", "wire_bytes_per_step", "seconds")}


def rows(finished: list[Run], strategies: list[str]) -> list[Row]:
    """A row a strategy, each beside the first."""
    table: list[Row] = []
    for name in strategies:
        own = [run for run in finished if run["strategy"] == name]
        accuracy, sent = [100 * run["accuracy"] for run in own], own[0]["wire_bytes_per_step"]
        mean = statistics.mean(accuracy)
        first = table[0] if table else Row(name, sent, 1, mean, 0, 0, 0, True)
        apart, ratio = round(mean - first.mean, 6), first.wire_bytes / sent
        table.append(Row(name, sent, ratio, mean, min(accuracy), max(accuracy), apart, apart >= -LIMIT))
    return table


def text(table: list[Row], finished: list[Run], args: argparse.Namespace) -> str:
    """The table as a person reads it."""
    mesh = f"mesh {args.hosts} x {args.devices_per_host}, {finished[0]['steps']} steps, {args.seeds} seeds"
    lines = [f"{' '.join([args.config, *args.overrides])}: {mesh}", ""]
    lines += [f"{'strategy':26} {'bytes/step':>10} {'fewer':>7} {'mean':>8} {'min':>8} {'max':>8} {'points':>7}"]
    for row in table:
        share = f"{row.wire_bytes:10,} {row.ratio:6.1f}x"
        accuracy = f"{row.mean:7.2f}% {row.least:7.2f}% {row.most:7.2f}%"
        mark = "" if row.within else f"  more than {LIMIT} below"
        lines += [f"{row.strategy:26} {share} {accuracy} {row.difference:+7.2f}{mark}"]
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are not there yet, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/digits.py")
    parser.add_argument("--strategy", action="append", metavar="NAME[:key=number]", help="again for each; default all")
    parser.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, ...")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--devices-per-host", type=int, default=4)
    parser.add_argument("--results", type=Path, default=Path(os.devnull), help="file of finished runs; default none")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    args = parser.parse_intermixed_args()
    args.strategy = args.strategy or LABELS
    try:
        for label in args.strategy:
            named_strategy(label)
    except ValueError as error:
        parser.error(f"argument --strategy: {error}")
    jax.config.update("jax_num_cpu_devices", args.hosts * args.devices_per_host)
    finished = list(runs(args))
    table = rows(finished, args.strategy)
    report = {"runs": finished, "limit": LIMIT, "rows": [row._asdict() for row in table]}
    print(json.dumps(report) if args.json else text(table, finished, args))


if __name__ == "__main__":
    main()
