"""How long a network takes for a batch: jaxnet's program, PyTorch's eager and compiled, and ONNX Runtime's.

    python -m benchmarks.inference --network resnet50 --batch 1 --batch 32

Images of 224x224 as bytes, normalization, network and softmax, float32, random weights. Workers are asked in turn,
never two at once, a call each; figures are p50 and p99 of the calls. Needs PyTorch's environment
(benchmarks/peers/README.md).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers.networks import NETWORKS
from benchmarks.peers.rounds import in_turn
from benchmarks.peers.workers import (
    Worker,
    add_cores,
    add_torch_python,
    find_torch_python,
    huge_pages,
    keep_to_cores,
    worker_command,
)
from jaxnet.errors import exit_cleanly

ENGINES = {
    "jaxnet": "jax",
    "torch channels_last": "torch",
    "torch compile": "torch",
    "onnxruntime": "torch",
}


class Turn(NamedTuple):
    """An engine with a batch of so many images."""

    engine: str
    batch: int

    @property
    def variant(self) -> str:
        """As the worker knows it."""
        return f"{self.engine} {self.batch}"


def measure(network: str, turns: Sequence[Turn], calls: int, torch_python: str, cores: int) -> dict[Turn, list[float]]:
    """Milliseconds of every call."""
    times: dict[Turn, list[float]] = {turn: [] for turn in turns}
    with ExitStack() as stack:
        workers = {}
        for framework in dict.fromkeys(ENGINES[turn.engine] for turn in turns):
            own = [turn.variant for turn in turns if ENGINES[turn.engine] == framework]
            command = [*worker_command("inference", framework, torch_python), network, str(cores), *own]
            pages = huge_pages() if framework == "jax" else {}  # each as one starts it
            workers[framework] = stack.enter_context(Worker(framework, command, pages))
        for _, turn in in_turn(turns, calls):
            times[turn].append(workers[ENGINES[turn.engine]].milliseconds(turn.variant, 1))
    return times


def text(times: Mapping[Turn, Sequence[float]]) -> Iterator[str]:
    """Lines of Markdown: a row an engine, p50 and p99 of each batch."""
    batches = list(dict.fromkeys(turn.batch for turn in times))
    yield f"| ms | {' | '.join(f'{batch}: p50 | p99' for batch in batches)} |"
    yield "| --- " * (1 + 2 * len(batches)) + "|"
    for engine in dict.fromkeys(turn.engine for turn in times):
        found = [np.percentile(times[Turn(engine, batch)], [50, 99]) for batch in batches]
        yield f"| {engine} | {' | '.join(f'{value:.1f}' for pair in found for value in pair)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(NETWORKS), default="resnet50")
    parser.add_argument("--batch", type=int, action="append", help="images; again for each; default 1 and 32")
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="again for each; default: all")
    parser.add_argument("--calls", type=int, default=50, help="of each; default %(default)s")
    add_cores(parser)
    add_torch_python(parser)
    parser.add_argument("--json", action="store_true", help="print the times of every call")
    args = parser.parse_args()
    torch_python = find_torch_python(args.torch_python)
    keep_to_cores(args.cores)
    turns = [Turn(engine, batch) for batch in args.batch or [1, 32] for engine in args.engine or ENGINES]
    times = measure(args.network, turns, args.calls, torch_python, args.cores)
    if args.json:
        print(json.dumps({turn.variant: values for turn, values in times.items()}))
    else:
        print("\n".join(text(times)))
    return 0


if __name__ == "__main__":
    exit_cleanly(main)
