"""Interleaved rounds: everything is timed once a round, so that a disturbance hits all alike."""

import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from jaxnet.cost.processes import gathered, wait_for_all
from jaxnet.cost.steps import Task

Key = TypeVar("Key", bound=Hashable)

_WARMUP_STEPS = 2


def seconds_a_step(task: Task, steps: int) -> float:
    """Time `steps` steps from a common start to the end of the last process; every process must call it."""
    wait_for_all()
    started = time.perf_counter()
    task.run(steps)
    return float(gathered(np.array([time.perf_counter() - started])).max()) / steps


def warm_up(task: Task) -> None:
    """Run what a first call costs more: connections, memory, caches."""
    wait_for_all()
    task.run(_WARMUP_STEPS)


def interleave(tasks: Mapping[Key, Task], rounds: int, steps: int) -> dict[Key, list[float]]:
    """Seconds a step of every task in every round; every other round goes through the tasks backwards.

    Every process must call it with the same arguments.
    """
    for task in tasks.values():
        warm_up(task)
    times: dict[Key, list[float]] = {key: [] for key in tasks}
    for number in range(rounds):
        for key in reversed(list(tasks)) if number % 2 else tasks:
            times[key].append(seconds_a_step(tasks[key], steps))
    return times
