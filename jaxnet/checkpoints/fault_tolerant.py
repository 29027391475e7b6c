"""Checkpoints of a run that goes on when one of them cannot be written."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from jaxnet.checkpoints.checkpoints import Checkpointer, NotSaved, Restored, not_shared
from jaxnet.checkpoints.storage import NO_DEFAULTS, Replaceable

# ---- Checkpoints of processes that hold the same state and share no devices: one reads and writes for all


class Processes(Protocol):
    """How the processes of a run talk: all make the same calls in the same order."""

    def broadcast_object(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on process 0, which alone calls it. If it raises InputError, every process does."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """The `value` of every process, in their order."""


class OneWriter:
    """The checkpoints of process 0 for all processes: the methods of `Checkpointer`, called by all in the same order.

    What process 0 restores goes to the others as arrays, and there onto devices of their own.

    Raises InputError as `Checkpointer`, on all processes.
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
        self._own: Checkpointer | None = None

        def make() -> None:
            self._own = Checkpointer(directory, keep=keep, best=best, fence=fence)

        processes.broadcast_object(make)
        blind = [process for process, sees in enumerate(processes.all_gather_object(directory.is_dir())) if not sees]
        if blind:
            raise not_shared(directory, blind)

    def save(self, step: int, state: Any, *, extra: dict[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """As `Checkpoints.save`."""
        self._saved(lambda own: own.save(step, state, extra=extra, metrics=metrics))

    def wait(self) -> None:
        """As `Checkpoints.wait`."""
        self._saved(Checkpointer.wait)

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

        def restore(own: Checkpointer) -> tuple[int, dict[str, Any], dict[str, str]] | None:
            restored = own.restore_latest(like, up_to=up_to, defaults=defaults, replaceable=replaceable)
            found.extend(filter(None, [restored]))
            return (found[0].step, found[0].extra, dict(found[0].replaced)) if found else None

        about = self._told(restore)
        if about is None:
            return None
        step, extra, replaced = about
        leaves = iter(jax.tree.leaves([each.state for each in found]))
        # A leaf at a time, because MPI libraries count the bytes of a message with 32 bits.
        arrays = jax.tree.map(lambda _: self._processes.broadcast_object(lambda: np.asarray(next(leaves))), like)
        state = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), arrays, like)
        return Restored(step, state, extra, replaced)

    def close(self) -> None:
        """As `Checkpoints.close`."""
        self._saved(Checkpointer.close)

    def _saved(self, make: Callable[[Checkpointer], None]) -> None:
        """As `_told`; a failure of the storage, which a run survives, is one on all processes."""

        def on_first(own: Checkpointer) -> str:
            try:
                make(own)
            except NotSaved as error:
                return str(error)
            return ""

        if failure := self._told(on_first):
            raise NotSaved(failure)

    def _told(self, make: Callable[[Checkpointer], Any]) -> Any:
        def on_first() -> Any:
            assert self._own is not None, "process 0 has made it"
            return make(self._own)

        return self._processes.broadcast_object(on_first)


class FaultTolerantCheckpoints:
    """The methods of `Checkpointer`, of which `save` and `wait` say in a line that a step is not on the disk.

    Each `save` that is due is tried, whatever became of the one before. Whatever is no fault of the storage is raised
    as ever: another run has taken over, a step is older than those there.

    Attributes:
        unsaved: why the last save failed; "" if it went well.
    """

    def __init__(self, checkpoints: Checkpointer | OneWriter, say: Callable[[str], None]):
        self._own, self._say = checkpoints, say
        self.unsaved = ""

    def save(self, step: int, state: Any, *, extra: dict[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """As `Checkpoints.save`, but for failures of the storage."""
        self.wait()
        self.unsaved = ""
        self._try(lambda: self._own.save(step, state, extra=extra, metrics=metrics))

    def wait(self) -> None:
        """As `Checkpoints.wait`, but for failures of the storage."""
        self._try(self._own.wait)

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """As `Checkpoints.restore_latest`."""
        self.wait()
        return self._own.restore_latest(like, up_to=up_to, defaults=defaults, replaceable=replaceable)

    def close(self) -> None:
        """As `Checkpoints.close`, but for failures of the storage."""
        self._try(self._own.close)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NotSaved as error:
            self.unsaved = str(error)
            self._say(f"{error}; those before it are kept")
