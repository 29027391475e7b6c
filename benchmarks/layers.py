"""The products and convolutions of a network one by one: how fast XLA:CPU computes them, and how fast PyTorch does.

    python -m benchmarks.layers --network dense --cores 1
    python -m benchmarks.layers --network resnet50 --batch 16

A training step needs each layer in three directions: forward, the gradient of its inputs and that of its kernel. Each
is timed as jaxnet's step computes it, as JAX writes it by itself, and as PyTorch does, by MKL and oneDNN, with channels
last or first, whichever is faster. A worker of each framework is asked in turn, never two at once; figures are medians
over the rounds. Freed memory stays with the worker, so that no time goes into pages. Needs PyTorch's environment
(benchmarks/peers/README.md).
"""

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jaxnet
from benchmarks.peers.networks import CLASSES, DIRECTIONS, IMAGE, NETWORKS, Layer, layer_turn
from benchmarks.peers.rounds import in_turn
from benchmarks.peers.workers import (
    Worker,
    add_cores,
    add_torch_python,
    find_torch_python,
    keep_to_cores,
    worker_command,
)
from jaxnet.cost.shapes import SIZES
from jaxnet.errors import InputError, exit_cleanly
from jaxnet.models import ZOO
from jaxnet.models.convolution import Convolution

WORKLOAD, TRANSFORMER = "dense", "transformer"  # besides the networks of images
# Whose worker times a column, and in which variants; the fastest counts. `written` is what JAX alone makes of a layer.
COLUMNS = {"jaxnet": ("jax", ("step",)), "written": ("jax", ("written",)), "torch": ("torch", ("last", "first"))}
_FLOPS_A_TURN = 1e10  # a call more often, until so many: some 0.1 s
# Freed memory is kept: else each result lies on fresh pages, and clearing these takes longer than many a product.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**63)}


class Row(NamedTuple):
    """A layer in a direction: how often a step needs it, and milliseconds of a call."""

    layer: Layer
    direction: str
    times: int
    jaxnet: float
    written: float
    torch: float

    @property
    def milliseconds(self) -> tuple[float, float, float]:
        """Of the three columns."""
        return self.jaxnet, self.written, self.torch


def layers_of(network: str, batch: int | None) -> Counter[tuple[Layer, str]]:
    """How often a training step needs each layer in each direction; the gradient of examples is never needed.

    >>> layers_of("dense", 8)[Layer((8, 1024), (1024, 1024)), "to_inputs"]
    7
    """
    found = list(_in_workload(network, batch) if network == WORKLOAD else _in_network(network, batch or 16))
    needed = Counter((layer, direction) for layer in found for direction in DIRECTIONS)
    needed[found[0], "to_inputs"] -= network != TRANSFORMER  # below its first product lies an embedding
    return +needed


def _in_workload(name: str, batch: int | None) -> Iterator[Layer]:
    """The kernels of a workload of products, which follow each other."""
    sizes = SIZES[name]
    for kernel in sizes.leaves:
        yield Layer((batch or sizes.batch, kernel[0]), kernel)


def _in_network(name: str, batch: int) -> list[Layer]:
    """The layers of a network, in the order in which it calls them."""
    found: list[Layer] = []

    def note(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module, outputs = context.module, call(*args, **kwargs)
        if context.method_name == "__call__" and isinstance(module, nn.Dense | Convolution):
            found.append(_layer(module, args[0].shape))
        return outputs

    if name == TRANSFORMER:
        network: nn.Module = jaxnet.load_config("configs/text_transformer.py").model
        examples = jax.ShapeDtypeStruct((batch, network.positions), "uint8")
    else:
        network = ZOO[NETWORKS[name].zoo].build(num_classes=CLASSES)
        examples = jax.ShapeDtypeStruct((batch, *IMAGE), "float32")
    with nn.intercept_methods(note):
        jax.eval_shape(lambda given: network.init(jax.random.key(0), given, train=False), examples)
    return found


def _layer(module: nn.Dense | Convolution, inputs: tuple[int, ...]) -> Layer:
    if isinstance(module, nn.Dense):
        return Layer(inputs, (inputs[-1], module.features))
    groups, padding = module.feature_group_count, module.padding
    if isinstance(padding, int):
        pads = [(padding, padding)] * 2
    elif isinstance(padding, str):
        pads = lax.padtype_to_pads(inputs[1:3], module.kernel_size, (module.strides,) * 2, padding)
    else:
        pads = list(padding)
    if any(before != after for before, after in pads):
        raise InputError(f"PyTorch's convolutions pad both sides alike; {module.name} pads {pads}")
    kernel = (*module.kernel_size, inputs[-1] // groups, module.features)
    return Layer(inputs, kernel, module.strides, tuple(before for before, _ in pads), groups)


# ---- Timing ---------------------------------------------------------------------------------------------------


def measure(needed: Mapping[tuple[Layer, str], int], torch_python: str, rounds: int, cores: int) -> list[Row]:
    """Time every layer in every direction, by turns."""
    layers = list(dict.fromkeys(layer for layer, _ in needed))
    turns = [
        (framework, layer_turn(variant, layers.index(layer), direction), layer)
        for layer, direction in needed
        for framework, variants in COLUMNS.values()
        for variant in variants
    ]
    times: dict[tuple[str, str], list[float]] = {turn[:2]: [] for turn in turns}
    with ExitStack() as stack:
        workers = {}
        for framework in dict.fromkeys(turn[0] for turn in turns):
            command = [*worker_command("layers", framework, torch_python), json.dumps(layers), str(cores)]
            workers[framework] = stack.enter_context(Worker(framework, command, _KEEP_MEMORY))
        for _, (framework, variant, layer) in in_turn(turns, rounds):
            calls = max(1, round(_FLOPS_A_TURN / layer.flops))
            times[framework, variant].append(workers[framework].milliseconds(variant, calls))

    def best(column: str, layer: Layer, direction: str) -> float:
        framework, variants = COLUMNS[column]
        labels = (layer_turn(variant, layers.index(layer), direction) for variant in variants)
        return min(statistics.median(times[framework, label]) for label in labels)

    return [Row(*key, count, *(best(column, *key) for column in COLUMNS)) for key, count in needed.items()]


# ---- The table ----------------------------------------------------------------------------------------------------


def text(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of Markdown: a row a layer and direction, then the sums over a step; milliseconds, and GFLOP/s behind."""
    yield "| layer | direction | times | GFLOP | jaxnet | as JAX writes it | PyTorch | PyTorch / jaxnet |"
    yield "| --- " * 8 + "|"
    for row in rows:
        yield _line(row.layer.label, row.direction, row.times, row.layer.flops, row.milliseconds)
    for direction in (*DIRECTIONS, "all"):
        own = [row for row in rows if direction in (row.direction, "all")]
        flops, times = sum(row.times * row.layer.flops for row in own), sum(row.times for row in own)
        columns = zip(*([row.times * each for each in row.milliseconds] for row in own), strict=True)
        sums = [sum(column) for column in columns]
        yield _line("**a step**", direction, times, flops, sums)


def _line(label: str, direction: str, times: int, flops: int, milliseconds: Sequence[float]) -> str:
    cells = (f"{value:.2f} ({flops / value / 1e6:.0f})" for value in milliseconds)
    ratio = milliseconds[-1] / milliseconds[0]
    head = f"| {label} | {direction.replace('_', ' ')} | {times} | {flops / 1e9:.2f} "
    return f"{head}| {' | '.join(cells)} | {ratio:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=(WORKLOAD, TRANSFORMER, *NETWORKS), default=WORKLOAD)
    parser.add_argument("--batch", type=int, help="examples; default: the workload's, or 16 images")
    add_cores(parser)
    parser.add_argument("--rounds", type=int, default=5)
    add_torch_python(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    args.torch_python = find_torch_python(args.torch_python)
    keep_to_cores(args.cores)
    jax.config.update("jax_platforms", "cpu")
    rows = measure(layers_of(args.network, args.batch), args.torch_python, args.rounds, args.cores)
    if args.json:
        print(json.dumps({**vars(args), "rows": [row._asdict() for row in rows]}))
    else:
        print("\n".join(text(rows)))
    return 0


if __name__ == "__main__":
    exit_cleanly(main)
