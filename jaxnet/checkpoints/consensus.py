"""Decisions that process 0 takes and all processes follow."""

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from jaxnet.errors import InputError

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
        self._attempt = 0

    def decided(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on process 0, as JSON carries it; called only there, it may take long.

        An InputError that it raises there is raised on all.
        """
        if jax.process_count() == 1:
            return make()
        text = json.dumps(_value_or_error(make)).encode() if self.primary else b""
        self.barrier()  # a collective would have less patience
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        padded = np.frombuffer(text.ljust(size, b" "), np.uint8)
        value, error = json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())
        if error is not None:
            raise InputError(error)
        return value

    def barrier(self) -> None:
        """Wait for all; nothing runs on the devices, so that a thread beside the training may call it."""
        key = f"{self._name}-{next(self._numbers)}"
        multihost.get_barrier_sync_fn()(key=key, timeout_ms=_PATIENCE * 1000)

    def begin(self, make: Callable[[], str]) -> str:
        """Begin an attempt in which each process may fail by itself: what `make` returns on process 0, for all."""
        self._attempt += 1
        if jax.process_count() == 1:
            return make()
        key = f"{self._key}/begun"
        if self.primary:
            _client().key_value_set(key, make())
        return str(_client().blocking_key_value_get(key, _PATIENCE * 1000))

    def meet(self, *, key: str, timeout_ms: int) -> None:
        """A barrier within an attempt; OSError as soon as the attempt has failed on any process, or after the time."""
        if jax.process_count() > 1:
            self._gather(f"met/{key}", "", timeout_ms / 1000)

    def end(self, failure: str) -> str:
        """End the attempt, "" if it went well here; all get the `failure` of the first process that has one, or ""."""
        if jax.process_count() == 1:
            return failure
        try:
            said = self._gather("done", failure, _PATIENCE)
        except OSError as error:
            return str(error)
        if self.primary:  # all have left the attempt before this one
            _client().key_value_delete(f"{self._name}/{self._attempt - 1}/")
        return next(filter(None, said), "")

    @property
    def _key(self) -> str:
        return f"{self._name}/{self._attempt}"

    def _gather(self, key: str, value: str, seconds: float) -> list[str]:
        """The value of every process, in their order. Not by a barrier of JAX, in which a failed process is missing."""
        client, count, until, pause = _client(), jax.process_count(), time.monotonic() + seconds, 0.01
        client.key_value_set(f"{self._key}/{key}/{jax.process_index():06d}", value)
        while True:
            there = sorted(client.key_value_dir_get(f"{self._key}/{key}"))
            if len(there) == count:
                return [text for _, text in there]
            failed = [text for _, text in sorted(client.key_value_dir_get(f"{self._key}/done")) if text]
            if failed and key != "done":
                raise OSError(failed[0])
            if time.monotonic() > until:
                raise OSError(f"{count - len(there)} of {count} processes did not come within {seconds:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.5)


def _value_or_error(make: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return make(), None
    except InputError as error:
        return None, str(error)


def _client() -> Any:
    return multihost.get_jax_distributed_client()
