"""A thread for computation beside the one that a collective holds."""

import os
import sys

_VARIABLES = ("PJRT_NPROC", "NPROC")  # either decides; the second is an older name


def spare_thread() -> None:
    """Let XLA:CPU of this process compute while a collective is under way; call before any device use.

    XLA:CPU takes as many threads as the process has cores, and a Gloo collective holds one until all hosts have
    answered. A process with one core would have none left, and nothing would overlap.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    if cores == 1 and not any(name in os.environ for name in _VARIABLES):
        os.environ[_VARIABLES[0]] = "2"
