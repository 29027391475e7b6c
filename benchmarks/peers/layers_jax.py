"""Products and convolutions by XLA, as a training step computes them, for layers.py."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.networks import WARMUP_STEPS, Layer, layer_runs
from benchmarks.peers.rounds import serve_runs
from jaxnet.models import network_options
from jaxnet.models.convolution import convolve
from jaxnet.parallel.kernel_gradients import fast_kernel_gradients

VARIANTS: dict[str, Callable[..., Any]] = {"step": fast_kernel_gradients, "written": lambda call: call}


def layer_run(layer: Layer, direction: str, variant: str) -> Callable[[int], None]:
    """So many calls; each writes over the result of the call before."""

    def forward(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        if layer.is_product:
            return jnp.dot(inputs, kernel)
        return convolve(inputs, kernel, layer.stride, [(pad, pad) for pad in layer.padding], layer.groups)

    def call(inputs: jax.Array, kernel: jax.Array, gradient: jax.Array, result: jax.Array) -> jax.Array:
        del result  # the new one takes its memory
        if direction == "forward":
            return forward(inputs, kernel)
        if direction == "to_inputs":
            return jax.vjp(lambda given: forward(given, kernel), inputs)[1](gradient)[0]
        return jax.vjp(lambda given: forward(inputs, given), kernel)[1](gradient)[0]

    draw = lambda number, shape: jax.random.normal(jax.random.key(number), shape)  # noqa: E731
    given = [draw(0, layer.inputs), draw(1, layer.kernel), draw(2, layer.outputs)]
    result = jnp.zeros({"forward": layer.outputs, "to_inputs": layer.inputs, "to_kernel": layer.kernel}[direction])
    compiled: Any = jax.jit(
        VARIANTS[variant](call),
        donate_argnums=3,
        keep_unused=True,
        compiler_options=network_options(jax.default_backend()),
    )
    held = [result]

    def run(calls: int) -> None:
        for _ in range(calls):
            held[0] = compiled(*given, held[0])
        jax.block_until_ready(held[0])

    return run


def main() -> None:
    layers = [Layer.of(given) for given in json.loads(sys.argv[1])]
    serve_runs("jax", layer_runs(layers, VARIANTS, layer_run), WARMUP_STEPS)


if __name__ == "__main__":
    main()
