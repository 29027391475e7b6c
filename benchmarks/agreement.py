"""Whether a run has the same loss curve on any number of processes and devices, and with any strategy.

    python benchmarks/agreement.py [--json] [--config configs/digits.py] [--steps 200] [key.path=value ...]

Trains on every topology with every strategy, through train.py, BatchNorm global, and prints how far each loss
curve is from that of one process with one device: the largest relative difference over the first 10 steps and
over all. All processes run on this machine, and a difference in the last bit is the rule, because sums are taken
in another order. `model.smooth=false` shows what ReLU and max pooling make of that bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxnet.config.file import load_config

ROOT = Path(__file__).parents[1]
FIRST = 10


class Topology(NamedTuple):
    """`hosts` are the rows of the mesh; None: one a process."""

    processes: int
    devices_per_process: int
    hosts: int | None = None

    def __str__(self) -> str:
        hosts = f", {self.hosts} hosts" if self.hosts else ""
        return f"{self.processes} x {self.devices_per_process}{hosts}"


ONE = Topology(1, 1)
TOPOLOGIES = (Topology(1, 8), Topology(1, 8, 2), Topology(2, 1), Topology(2, 4), Topology(4, 1))
STRATEGIES = ("hierarchical", "ddp", "per_leaf", "flat", "xla")


class Result(NamedTuple):
    """Largest relative differences of the loss, and what the test split says in the end."""

    topology: str
    strategy: str
    first_steps: float
    all_steps: float
    accuracy: float


def loss_curve(topology: Topology, settings: list[str], config: str, steps: int) -> tuple[np.ndarray, float]:
    """Train; the loss of every step, and the accuracy in the end."""
    data = load_config(config, *settings)
    epochs = steps * data.batch_size / data.data.load("train").num_examples
    fixed = ["log.every_steps=1", "log.tensorboard=false", f"epochs={epochs}", f"eval_every_epochs={2 * epochs}"]
    hosts = [] if topology.hosts is None else [f"hosts={topology.hosts}"]
    launcher = ["launch", "local", "--processes", str(topology.processes)]
    launcher += ["--devices-per-process", str(topology.devices_per_process)]
    with tempfile.TemporaryDirectory() as workdir:
        train = [str(ROOT / "train.py"), "--config", config, "--workdir", workdir, *settings, *fixed, *hosts]
        command = [sys.executable, "-m", "jaxnet", *launcher, "--", *train]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{topology}, {' '.join(settings)}: exit status {done.returncode}\n{done.stderr}")
        lines = [json.loads(line) for line in (Path(workdir) / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((Path(workdir) / "summary.json").read_text())
    curve = np.array([line["loss"] for line in lines if line["split"] == "train"])
    assert len(curve) == steps
    return curve, summary["accuracy"]


def compare(config: str, steps: int, overrides: list[str]) -> list[Result]:
    """Every topology with every strategy, each beside one process with one device."""
    shared = ["batch_norm=global", *overrides]
    reference, accuracy = loss_curve(ONE, shared, config, steps)
    results = [Result(str(ONE), "hierarchical", 0.0, 0.0, accuracy)]
    ways = [(topology, name, f"strategy={name}") for topology in TOPOLOGIES for name in STRATEGIES]
    ways.insert(len(STRATEGIES), (Topology(1, 8), "hierarchical, pmap", "mode=pmap"))  # of one process and host alone
    for topology, name, setting in ways:
        curve, accuracy = loss_curve(topology, [*shared, setting], config, steps)
        apart = np.abs(curve / reference - 1)
        results.append(Result(str(topology), name, apart[:FIRST].max(), apart.max(), accuracy))
        print(f"{len(results)} of {len(ways) + 1}", end="\r", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(ROOT / "configs/digits.py"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    arguments = parser.parse_intermixed_args()
    results = compare(arguments.config, arguments.steps, arguments.overrides)
    if arguments.json:
        print(json.dumps({"steps": arguments.steps, "results": [result._asdict() for result in results]}))
        return
    print(f"largest relative difference of the loss from one process with one device, {arguments.steps} steps\n")
    print(f"{'processes x devices':20} {'strategy':20} {f'first {FIRST}':>9} {'all':>9} {'accuracy':>9}")
    for row in results:
        print(
            f"{row.topology:20} {row.strategy:20} {row.first_steps:9.1e} {row.all_steps:9.1e} {row.accuracy:9.2%}",
        )


if __name__ == "__main__":
    main()
