"""What the workers of both frameworks share: they time `steps` steps of a variant whenever they are told to.

A worker prints one JSON line when it is warm, then reads lines `VARIANT STEPS` and answers each with one JSON
line, until its standard input ends. Needs neither JAX nor PyTorch.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def serve(framework: str, seconds_a_step: Callable[[str, int], float]) -> None:
    """Answer requests from standard input."""
    say(framework=framework, ready=True)
    for line in sys.stdin:
        variant, steps = line.rsplit(maxsplit=1)
        say(framework=framework, variant=variant, ms=seconds_a_step(variant, int(steps)) * 1e3)


def serve_runs(framework: str, runs: Mapping[str, Callable[[int], None]], warmup_steps: int) -> None:
    """Warm up, then answer; `runs[variant](steps)` takes so many steps and waits for the last.

    A step more comes first in each round, untimed: what the caches and the system have given to others meanwhile.
    """

    def seconds_a_step(variant: str, steps: int) -> float:
        runs[variant](1)
        started = time.perf_counter()
        runs[variant](steps)
        return (time.perf_counter() - started) / steps

    for run in runs.values():
        run(warmup_steps)
    serve(framework, seconds_a_step)


def in_turn(variants: Sequence[Any], rounds: int) -> Iterator[tuple[int, Any]]:
    """(round, variant): every variant once a round, backwards in every other round."""
    for number in range(rounds):
        for variant in reversed(variants) if number % 2 else variants:
            yield number, variant
