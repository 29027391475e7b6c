"""Products and convolutions by PyTorch, so by MKL and oneDNN on a CPU, for layers.py."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.networks import WARMUP_STEPS, Layer, layer_runs
from benchmarks.peers.rounds import serve_runs

FORMATS = {"last": torch.channels_last, "first": torch.contiguous_format}


def layer_run(layer: Layer, direction: str, layout: str) -> Callable[[int], None]:
    """So many calls of what autograd calls for the layer."""
    call = _product(layer, direction) if layer.is_product else _convolution(layer, direction, layout)

    def run(calls: int) -> None:
        with torch.no_grad():
            for _ in range(calls):
                call()

    return run


def _product(layer: Layer, direction: str) -> Callable[[], object]:
    rows = math.prod(layer.inputs[:-1])  # autograd, too, takes them together
    inputs, gradient = (torch.randn(rows, channels) for channels in layer.kernel)
    kernel = torch.randn(layer.kernel)
    return {
        "forward": lambda: inputs @ kernel,
        "to_inputs": lambda: gradient @ kernel.t(),
        "to_kernel": lambda: inputs.t() @ gradient,
    }[direction]


def _convolution(layer: Layer, direction: str, layout: str) -> Callable[[], object]:
    def draw(shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
        return torch.randn([shape[dim] for dim in order]).contiguous(memory_format=FORMATS[layout])

    inputs, gradient = (draw(shape, (0, 3, 1, 2)) for shape in (layer.inputs, layer.outputs))
    kernel = draw(layer.kernel, (3, 2, 0, 1))
    steps, pads = (layer.stride,) * 2, layer.padding
    if direction == "forward":
        return lambda: torch.nn.functional.conv2d(inputs, kernel, None, steps, pads, 1, layer.groups)
    wanted = [direction == "to_inputs", direction == "to_kernel", False]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, inputs, kernel, None, steps, pads, (1, 1), False, (0, 0), layer.groups, wanted
    )


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    layers = [Layer.of(given) for given in json.loads(sys.argv[1])]
    serve_runs("torch", layer_runs(layers, FORMATS, layer_run), WARMUP_STEPS)


if __name__ == "__main__":
    main()
