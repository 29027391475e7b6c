"""How many 28x28 images a second the input pipeline gives on one core, from memory.

    python benchmarks/data_rate.py [--json] [--batch-size 256] [--repeats 7]

Three things take turns, so that a busy machine slows all of them:
  pipeline   train_batches: permutation, gather, Grain
  gather     the same rows by np.take alone, the bound for anything that shuffles
  memcpy     as many bytes copied from one place to another, the bound for anything that copies
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from jaxnet.data import Shard, Synthetic, permutation, train_batches

NUM_EXAMPLES = 60_000


def examples_per_second(step: Callable[[], object], steps: int, batch_size: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * batch_size / (time.perf_counter() - start)


def measure(batch_size: int, repeats: int) -> dict[str, float]:
    """Median rate of each, in examples a second, over two epochs a repeat."""
    source = Synthetic(image_shape=(28, 28, 1), num_train=NUM_EXAMPLES).load("train")
    batches = train_batches(source, batch_size=batch_size, seed=0, shard=Shard(0, 1))
    order = permutation(0, 0, NUM_EXAMPLES)
    starts = itertools.cycle(range(0, NUM_EXAMPLES - batch_size, batch_size))
    target = np.empty((batch_size, *source.image_shape), np.uint8)

    def gather() -> None:
        start = next(starts)
        source.image.take(order[start : start + batch_size], axis=0)

    def memcpy() -> None:
        start = next(starts)
        np.copyto(target, source.image[start : start + batch_size])

    contestants = {"pipeline": lambda: next(batches), "gather": gather, "memcpy": memcpy}
    steps = 2 * NUM_EXAMPLES // batch_size
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, step in contestants.items():
            rates[name].append(examples_per_second(step, steps, batch_size))
    return {name: statistics.median(several) for name, several in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()
    rates = measure(arguments.batch_size, arguments.repeats)
    if arguments.json:
        print(json.dumps({"batch_size": arguments.batch_size, "examples_per_second": rates}))
        return
    for name, rate in rates.items():
        print(f"{name:9} {rate / 1e6:6.2f} million examples/s  {rate * 28 * 28 / 1e9:6.2f} GB/s of images")


if __name__ == "__main__":
    main()
