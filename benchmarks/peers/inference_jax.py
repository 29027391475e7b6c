"""Inference by jaxnet, for inference.py: the program that `jaxnet predict` and `jaxnet serve` run."""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.networks import CLASSES, IMAGE, NETWORKS, WARMUP_STEPS
from benchmarks.peers.rounds import serve_runs
from jaxnet.data import Inputs
from jaxnet.inference.network import Architecture
from jaxnet.models import ZOO, inference_options
from jaxnet.tasks.classification import ImageClassification


def calls_of(network: str, batch: int) -> Callable[[int], None]:
    """So many calls, each waited for."""
    module = ZOO[NETWORKS[network].zoo].build(num_classes=CLASSES)
    architecture = Architecture(module, ImageClassification(), Inputs(IMAGE, CLASSES))
    draw = np.random.default_rng(0)
    weights = {
        name: np.abs(draw.standard_normal(leaf.shape, np.float32)) * 0.01 for name, leaf in architecture.shapes.items()
    }
    given = jax.device_put((weights, draw.integers(0, 256, (batch, *IMAGE), np.uint8)))
    options = inference_options(jax.default_backend())
    program = jax.jit(architecture.predictions, compiler_options=options).lower(*given).compile()

    def run(calls: int) -> None:
        for _ in range(calls):
            jax.block_until_ready(program(*given))

    return run


def main() -> None:
    network, _, *variants = sys.argv[1:]
    runs = {variant: calls_of(network, int(variant.split()[-1])) for variant in variants}
    serve_runs("jax", runs, WARMUP_STEPS)


if __name__ == "__main__":
    main()
