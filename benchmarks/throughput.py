"""Examples a second that a training step takes: jaxnet's, a JAX loop written by hand, and PyTorch's.

    python benchmarks/throughput.py --model resnet50 --batch 16
    python benchmarks/throughput.py --model vgg16 --batch 128 --dtype bfloat16 --torch-python .venv-torch/bin/python

All train the same network on images of 224x224 that lie on the device, or on tokens, by softmax cross-entropy and SGD
with momentum. All workers are alive all along and are asked in turn, never two at once; figures are medians over the
rounds. FLOPs are three times those of the forward pass; the peak is that of each worker's own products of square
matrices in the same run. train.py asks the C library for huge pages, and so does the worker of jaxnet; PyTorch is
measured as it is and with them. Without an environment for PyTorch (benchmarks/peers/README.md), JAX is measured
alone.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers.networks import MATMUL, MODELS
from benchmarks.peers.rounds import in_turn
from benchmarks.peers.train_jax import subject
from benchmarks.peers.workers import Worker, add_torch_python, find_torch_python, huge_pages, worker_command
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.models import abstract_variables, from_linen
from jaxnet.models.zoo import count_flops


class Turn(NamedTuple):
    """What is timed in a round: `variant`, as the worker of `framework` knows it, with memory in huge pages or not."""

    framework: str
    variant: str
    huge_pages: bool = False

    @property
    def products(self) -> "Turn":
        """The same worker's products of matrices."""
        return self._replace(variant=MATMUL)


VARIANTS = {
    "jaxnet": Turn("jax", "jaxnet", huge_pages=True),
    "jax by hand": Turn("jax", "jax by hand"),
    "torch eager": Turn("torch", "torch eager"),
    "torch channels_last": Turn("torch", "torch channels_last"),
    "torch compile": Turn("torch", "torch compile"),
    "torch channels_last, huge": Turn("torch", "torch channels_last", huge_pages=True),
    "torch compile, huge": Turn("torch", "torch compile", huge_pages=True),
}

Times = Mapping[Turn, Sequence[float]]  # milliseconds of every round


class Row(NamedTuple):
    """A variant: median, fastest and slowest in milliseconds a step; percent of its worker's matmul peak."""

    variant: str
    milliseconds: float
    least: float
    most: float
    examples_per_second: float
    gflop_per_second: float
    percent_of_peak: float
    ratio: float


def step_flops(model: str, batch: int) -> int:
    """Floating-point operations of a training step: forward, and twice as many backward."""
    trained = subject(model, batch, "float32")
    network, (inputs, _) = from_linen(trained.network), jax.eval_shape(trained.given, trained.batch)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
    variables = abstract_variables(network, jax.ShapeDtypeStruct((1, *inputs.shape[1:]), inputs.dtype))

    def forward(params: Any, stats: Any, inputs: jax.Array, keys: jax.Array) -> Any:
        return network.apply(params, stats, inputs, train=True, keys=keys)[0]

    return 3 * count_flops(forward, *variables, inputs, keys)


def rows(times: Times, batch: int, flops: int, side: int) -> list[Row]:
    """A row a variant; the ratio is its images a second over those of the first."""
    names = {turn: name for name, turn in VARIANTS.items()}
    table: list[Row] = []
    for turn, values in times.items():
        if turn.variant == MATMUL:
            continue
        seconds, peak = statistics.median(values) / 1e3, 2 * side**3 / (min(times[turn.products]) / 1e3)
        ratio = table[0].milliseconds / (1e3 * seconds) if table else 1.0
        spread = (min(values), max(values))
        percent = 100 * flops / seconds / peak
        table.append(Row(names[turn], 1e3 * seconds, *spread, batch / seconds, flops / seconds / 1e9, percent, ratio))
    return table


def text(table: Sequence[Row]) -> str:
    """The table as a person reads it."""
    lines = [
        f"{'variant':26} {'ms/step':>9} {'min':>9} {'max':>9} {'a second':>9} {'GFLOP/s':>9} {'peak':>6} {'ratio':>6}"
    ]
    for row in table:
        times = f"{row.milliseconds:9.2f} {row.least:9.2f} {row.most:9.2f}"
        rates = (
            f"{row.examples_per_second:9.1f} {row.gflop_per_second:9.0f} {row.percent_of_peak:5.1f}% {row.ratio:6.2f}"
        )
        lines.append(f"{row.variant:26} {times} {rates}")
    return "\n".join(lines)


def measure(args: argparse.Namespace) -> dict[Turn, list[float]]:
    """Milliseconds of every round of every variant, and of products of matrices."""
    common = ["--model", args.model, "--batch", str(args.batch), "--dtype", args.dtype, "--side", str(args.side)]
    if args.threads:
        common += ["--threads", str(args.threads)]
    turns = [VARIANTS[name] for name in args.variant]
    kinds = list(dict.fromkeys(turn.products for turn in turns))  # a worker each
    times: dict[Turn, list[float]] = {turn: [] for turn in [*turns, *kinds]}
    with ExitStack() as stack:
        workers = {}
        for kind in kinds:
            own = [turn.variant for turn in turns if turn.products == kind]
            command = [*worker_command("train", kind.framework, args.torch_python), *common]
            command += [word for variant in own for word in ("--variant", variant)]
            pages = huge_pages() if kind.huge_pages else {}
            workers[kind] = stack.enter_context(Worker(kind.framework, command, pages))
        for _, turn in in_turn([*turns, *kinds], args.rounds):
            worker = workers[turn.products]
            times[turn].append(worker.milliseconds(turn.variant, args.steps_per_round))
    return times


def main() -> int:
    args = _arguments()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two frameworks share a GPU
    jax.config.update("jax_platforms", "cpu")  # of this process, which only counts; the workers do not see it
    table = rows(measure(args), args.batch, step_flops(args.model, args.batch), args.side)
    settings = {name: getattr(args, name) for name in ("model", "batch", "dtype", "rounds", "steps_per_round")}
    if args.json:
        print(json.dumps({**settings, "rows": [row._asdict() for row in table]}))
    else:
        print(" ".join(f"{name}={value}" for name, value in settings.items()), text(table), sep="\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--batch", type=int, default=16, help="examples a step; default 16")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of computation")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="again for each; default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-per-round", type=int, default=3)
    parser.add_argument("--side", type=int, default=2048, help="of the matrices that give the peak; 16384 on a GPU")
    parser.add_argument("--threads", type=int, help="of PyTorch; default: its own choice")
    add_torch_python(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    try:
        args.torch_python = find_torch_python(args.torch_python)
    except InputError:
        if args.torch_python or any(VARIANTS[name].framework == "torch" for name in args.variant or ()):
            raise
        args.variant = args.variant or [name for name, turn in VARIANTS.items() if turn.framework == "jax"]
    args.variant = args.variant or list(VARIANTS)
    return args


if __name__ == "__main__":
    exit_cleanly(main)
