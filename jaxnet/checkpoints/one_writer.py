"""Checkpoints of processes that hold the same state and share no devices: one reads and writes for all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from jaxnet.checkpoints.checkpoints import Checkpoints, NotSaved, Restored, not_shared
from jaxnet.checkpoints.defaults import NO_DEFAULTS, Replaceable


class Processes(Protocol):
    """How the processes of a run talk: all make the same calls in the same order."""

    def told(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on process 0, which alone calls it. If it raises InputError, every process does."""

    def given_by_all(self, value: Any) -> list[Any]:
        """The `value` of every process, in their order."""


class OneWriter:
    """The checkpoints of process 0 for all processes: the methods of `Checkpoints`, called by all in the same order.

    What process 0 restores goes to the others as arrays, and there onto devices of their own.

    Raises InputError as `Checkpoints`, on all processes.
    """

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        *,
        keep: int = 3,
        best: str | None = None,
        fence: Callable[[], None] = lambda: None,
    ):
        self._processes = processes
        self._own: Checkpoints | None = None

        def make() -> None:
            self._own = Checkpoints(directory, keep=keep, best=best, fence=fence)

        processes.told(make)
        blind = [process for process, sees in enumerate(processes.given_by_all(directory.is_dir())) if not sees]
        if blind:
            raise not_shared(directory, blind)

    def save(self, step: int, state: Any, *, extra: dict[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """As `Checkpoints.save`."""
        self._saved(lambda own: own.save(step, state, extra=extra, metrics=metrics))

    def wait(self) -> None:
        """As `Checkpoints.wait`."""
        self._saved(Checkpoints.wait)

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """As `Checkpoints.restore_latest`."""
        found: list[Restored] = []  # stays empty but on process 0

        def restore(own: Checkpoints) -> tuple[int, dict[str, Any], dict[str, str]] | None:
            restored = own.restore_latest(like, up_to=up_to, defaults=defaults, replaceable=replaceable)
            found.extend(filter(None, [restored]))
            return (found[0].step, found[0].extra, dict(found[0].replaced)) if found else None

        about = self._told(restore)
        if about is None:
            return None
        step, extra, replaced = about
        leaves = iter(jax.tree.leaves([each.state for each in found]))
        # A leaf at a time, because MPI libraries count the bytes of a message with 32 bits.
        arrays = jax.tree.map(lambda _: self._processes.told(lambda: np.asarray(next(leaves))), like)
        state = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), arrays, like)
        return Restored(step, state, extra, replaced)

    def close(self) -> None:
        """As `Checkpoints.close`."""
        self._saved(Checkpoints.close)

    def _saved(self, make: Callable[[Checkpoints], None]) -> None:
        """As `_told`; a failure of the storage, which a run survives, is one on all processes."""

        def on_first(own: Checkpoints) -> str:
            try:
                make(own)
            except NotSaved as error:
                return str(error)
            return ""

        if failure := self._told(on_first):
            raise NotSaved(failure)

    def _told(self, make: Callable[[Checkpoints], Any]) -> Any:
        def on_first() -> Any:
            assert self._own is not None, "process 0 has made it"
            return make(self._own)

        return self._processes.told(on_first)
