"""Decisions of process 0 that all processes follow, and attempts that fail on all when they fail on one."""

import itertools
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxnet.checkpoints.lock import Lost
from jaxnet.errors import InputError

# Seconds that processes wait for each other; Orbax allows a write as long.
_TIMEOUT_SECONDS = 20 * 60

# Distinguishes the barriers of one object from those of another; all processes create them in the same order.
_created = itertools.count()


class Consensus:
    """One conversation among all processes, which make the same calls on it in the same order.

    An attempt (a save) has three calls, of which the second runs in the background:

    1. `begin`: process 0 does what it alone must do, and tells the others whether it worked.
    2. `meet`: a barrier, any number of times. It ends at once if a process has already reported a failure to `end`.
    3. `end`: every process reports its failure, or ""; all get the first failure in rank order.

    They talk through the key-value store of JAX's coordination service, under `jaxnet-consensus-<object>/<attempt>/`.
    JAX's own barriers would not do: a process that failed never comes to them, and the others wait out the time.

    Args:
        alone: this process talks to itself, whatever others there are, which need no such object.

    >>> Consensus().decided(lambda: {"step": 200})
    {'step': 200}
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._count = 1 if alone else jax.process_count()
        self.primary = alone or jax.process_index() == 0
        self._name = "alone" if alone else f"jaxnet-consensus-{next(_created)}"
        self._numbers, self._attempt = itertools.count(), 0

    def decided(self, make: Callable[[], Any]) -> Any:
        """Call `make` on process 0, which may take long, and return its result, as JSON carries it, on all.

        An InputError that it raises there is raised on all.
        """
        if self._count == 1:
            return make()
        text = json.dumps(_value_or_error(make)).encode() if self.primary else b""
        self.barrier()  # wait here for a slow `make`: the collective below gives up sooner
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        padded = np.frombuffer(text.ljust(size, b" "), np.uint8)
        value, error = json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())
        if error is not None:
            raise InputError(error)
        return value

    def gathered(self, flag: bool) -> list[bool]:
        """Return the `flag` of every process in rank order."""
        if self._count == 1:
            return [flag]
        flags: list[bool] = multihost_utils.process_allgather(np.array(flag)).tolist()
        return flags

    def barrier(self) -> None:
        """Wait for all processes. Runs nothing on the devices, so a thread beside the training may call it."""
        if self._count == 1:
            return
        key = f"{self._name}-{next(self._numbers)}"
        from orbax.checkpoint import multihost  # takes a while to import

        multihost.get_barrier_sync_fn()(key=key, timeout_ms=_TIMEOUT_SECONDS * 1000)

    def begin(self, make: Callable[[], str]) -> str:
        """Begin an attempt: call `make` on process 0 and return its result, "" or a failure, on all."""
        self._attempt += 1
        if self._count == 1:
            return make()
        key = f"{self._key}/begun"
        if self.primary:
            _client().key_value_set(key, make())
        return str(_client().blocking_key_value_get(key, _TIMEOUT_SECONDS * 1000))

    def meet(self, *, key: str, timeout_ms: int) -> None:
        """Wait for all within an attempt; OSError as soon as any process has ended it with a failure, or too late."""
        if self._count > 1:
            self._gather(f"met/{key}", "", timeout_ms / 1000)

    def end(self, failure: str) -> str:
        """End the attempt with this process's `failure` or ""; return the first failure of any process, or ""."""
        if self._count == 1:
            return failure
        try:
            said = self._gather("done", failure, _TIMEOUT_SECONDS)
        except OSError as error:
            return str(error)
        if self.primary:  # every process has ended this attempt, so none still reads the keys of the one before
            _client().key_value_delete(f"{self._name}/{self._attempt - 1}/")
        return next(filter(None, said), "")

    @property
    def _key(self) -> str:
        return f"{self._name}/{self._attempt}"

    def _gather(self, key: str, value: str, seconds: float) -> list[str]:
        """Return the value of every process in rank order; OSError when a process has ended the attempt badly."""
        client, count, until, pause = _client(), self._count, time.monotonic() + seconds, 0.01
        client.key_value_set(f"{self._key}/{key}/{jax.process_index():06d}", value)
        while True:
            there = sorted(client.key_value_dir_get(f"{self._key}/{key}"))
            if len(there) == count:
                return [text for _, text in there]
            failed = [text for _, text in sorted(client.key_value_dir_get(f"{self._key}/done")) if text]
            if failed and key != "done":  # `end` waits for all, so that all get the same failure
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
    from orbax.checkpoint import multihost

    return multihost.get_jax_distributed_client()


# ---- Failures as text -----------------------------------------------------------------------------------

LOST = "lost: "  # the prefix of a failure that ends the run


def why_not(act: Callable[[], Any]) -> str:
    """Return why `act` failed, in words that can be sent to all processes; "" if it succeeded.

    >>> why_not(lambda: open("/nowhere/at/all")), why_not(lambda: None)
    ('No such file or directory', '')
    """
    try:
        act()
    except Lost as error:
        return f"{LOST}{error}"
    except Exception as error:
        # Orbax's storage buries the system's reason in a paragraph about its own paths.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        number = int(code[1]) if code else error.errno if isinstance(error, OSError) else None
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return os.strerror(number) if number else first
    return ""
