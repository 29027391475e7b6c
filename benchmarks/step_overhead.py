"""Host time of one step for a state of ResNet-50's size in leaves: 161 parameters, as many momenta, 106 averages.

The leaves are tiny, so what remains is what the host spends on dispatch: flattening the state, checking it,
handing it to the runtime. The bound is the same state through a bare `jax.jit` that adds one to every leaf.

    python benchmarks/step_overhead.py [--steps 300] [--json]
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnet.comm import make_mesh, named_strategy, split_by_example
from jaxnet.models import Model, Variables
from jaxnet.parallel import form_of
from jaxnet.parallel.state import first_state
from jaxnet.tasks.task import LossOutput

LAYERS, PARAMS, STATS = 53, 161, 106


def tiny_model() -> Model:
    """A model with ResNet-50's leaves, four elements each."""

    def init(key: jax.Array, images: jax.Array) -> Variables:
        del key, images
        params: dict[str, dict[str, jax.Array]] = {f"layer_{i // 3:02}": {} for i in range(PARAMS)}
        for i in range(PARAMS):
            params[f"layer_{i // 3:02}"][f"leaf_{i % 3}"] = jnp.ones(4)
        return Variables(params, {f"average_{i:03}": jnp.zeros(4) for i in range(STATS)})

    def apply(*_: Any, **__: Any) -> tuple[jax.Array, Any]:
        raise NotImplementedError

    return Model(init, apply)


def loss_fn(params: Any, stats: Any, batch: Any, keys: jax.Array) -> tuple[jax.Array, LossOutput]:
    """Touches every leaf, computes next to nothing."""
    del keys
    loss = sum(leaf.sum() for leaf in jax.tree.leaves(params)) * batch["label"].astype(jnp.float32).mean()
    return loss, LossOutput(jax.tree.map(lambda s: s * 0.9, stats), {"loss": loss, "accuracy": loss})


def call_times(step: Callable[..., Any], state: Any, batch: Any, steps: int) -> list[float]:
    """Seconds that each call takes to return, the device idle before it."""
    times = []
    for _ in range(steps):
        jax.block_until_ready(state)
        started = time.perf_counter()
        state, _ = step(state, batch)
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    """Measure, interleaved in rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    mesh, optimizer, strategy = make_mesh(), optax.sgd(0.1, 0.9), named_strategy("hierarchical")
    form = form_of(strategy, mesh)
    make = functools.partial(first_state, tiny_model(), optimizer, form.reducer(None), mesh, (1, 1, 1), 0)
    layout = form.layout(jax.eval_shape(make), optimizer)
    step, state = form.step(loss_fn, optimizer, layout), layout.make(make)
    batch = {"label": np.zeros(8, np.int32), "id": np.zeros(8, np.int32)}
    placed = jax.device_put(batch, split_by_example(mesh))
    bare = jax.jit(lambda state, _: (jax.tree.map(lambda leaf: leaf + 1, state), 0), donate_argnums=0)
    copy = lambda: jax.tree.map(jnp.copy, state)  # noqa: E731
    compiled = step.lower(state, placed).compile()
    runs: dict[str, list[float]] = {"jaxnet": [], "bare jit": []}
    for _ in range(5):
        runs["jaxnet"] += call_times(compiled, jax.device_put(copy(), state.step.sharding), placed, args.steps // 5)
        runs["bare jit"] += call_times(bare, copy(), placed, args.steps // 5)[2:]
    figures = {name: statistics.median(times) * 1e3 for name, times in runs.items()}
    figures["leaves"] = len(jax.tree.leaves(state))
    if args.json:
        print(json.dumps(figures))
    else:
        print(f"{figures['leaves']} leaves; median milliseconds a call")
        print(f"jaxnet step {figures['jaxnet']:.2f}, bare jit over the same state {figures['bare jit']:.2f}")


if __name__ == "__main__":
    main()
