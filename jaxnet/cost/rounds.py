"""Interleaved rounds: everything is timed once a round, so that a disturbance hits all alike."""

import logging
from collections.abc import Hashable, Mapping
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxnet.cost.steps import TimedProgram

_progress = logging.getLogger("jaxnet.progress")

# ---- Times of several processes as one: all of them time the same calls, then exchange what they saw --


def gathered(values: np.ndarray) -> np.ndarray:
    """`values` of every process, [processes, ...]; returns when all have called it."""
    if jax.process_count() == 1:
        return values[None]
    return np.asarray(multihost_utils.process_allgather(values.astype(np.float32))).astype(np.float64)


def wait_for_all() -> None:
    """Return at the same time on all processes, but for the latency of a message."""
    gathered(np.zeros(1))


Key = TypeVar("Key", bound=Hashable)

_WARM = 1  # each timing has one more call that is not timed


def seconds_a_step(task: TimedProgram, steps: int) -> float:
    """Time `steps` steps from a common start, on the process that takes longest; every process must call it."""
    wait_for_all()
    return float(gathered(np.array([task.seconds(steps)])).max()) / steps


def warm_up(task: TimedProgram) -> None:
    """Run what a first call costs more, if it is not done yet: connections, memory, caches."""
    if task.calls < _WARM:
        wait_for_all()
        task.run(_WARM)


def interleave(tasks: Mapping[Key, TimedProgram], rounds: int, steps: int) -> dict[Key, list[float]]:
    """Seconds a step of every task in every round; every other round goes through the tasks backwards.

    Every process must call it with the same arguments.
    """
    for number, task in enumerate(tasks.values()):
        _progress.info("compiling and warming up: %d of %d programs", number + 1, len(tasks))
        warm_up(task)
    times: dict[Key, list[float]] = {key: [] for key in tasks}
    for number in range(rounds):
        _progress.info("round %d of %d", number + 1, rounds)
        for key in reversed(list(tasks)) if number % 2 else tasks:
            times[key].append(seconds_a_step(tasks[key], steps))
    return times
