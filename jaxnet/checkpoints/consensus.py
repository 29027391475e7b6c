"""Decisions that process 0 takes and all processes follow."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

# Seconds that processes wait for each other; Orbax gives a write as long.
_PATIENCE = 20 * 60

# Distinguishes the barriers of one object from those of another; all processes create them in the same order.
_created = itertools.count()


class Consensus:
    """One conversation among all processes, which make the same calls on it in the same order.

    >>> Consensus().decided(lambda: {"step": 200})
    {'step': 200}
    """

    def __init__(self) -> None:
        self.primary = jax.process_index() == 0
        self._name, self._numbers = f"jaxnet-consensus-{next(_created)}", itertools.count()

    def decided(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on process 0, as JSON carries it; called only there, it may take long."""
        if jax.process_count() == 1:
            return make()
        text = json.dumps(make()).encode() if self.primary else b""
        self.barrier()  # a collective would have less patience
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        padded = np.frombuffer(text.ljust(size, b" "), np.uint8)
        return json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())

    def barrier(self) -> None:
        """Wait for all; nothing runs on the devices, so that a thread beside the training may call it."""
        key = f"{self._name}-{next(self._numbers)}"
        multihost.get_barrier_sync_fn()(key=key, timeout_ms=_PATIENCE * 1000)
