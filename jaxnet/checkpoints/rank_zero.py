"""Checkpoints under MPI, where only rank 0 reads and writes.

With MPI each process has a mesh of its own and all processes hold the same state, so no array spans them. Rank 0
therefore saves for all, and sends what it restores to the others.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
import numpy as np

from jaxnet.checkpoints.checkpointer import Checkpointer, NotSaved, Restored, not_shared
from jaxnet.checkpoints.leaves import NO_DEFAULTS, Replaceable


class Processes(Protocol):
    """How the processes of a run talk: all make the same calls in the same order."""

    def broadcast_object(self, make: Callable[[], Any]) -> Any:
        """Call `make` on process 0 and return its result on all; an InputError is raised on all too."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the `value` of every process, in rank order."""


class OneWriter:
    """The methods of `Checkpointer`, called by all processes in the same order and done by rank 0 alone.

    What rank 0 restores travels to the others as arrays, and each puts them on its own devices.

    Raises InputError as `Checkpointer` does, on all processes.
    """

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        *,
        keep: int = 3,
        best: str | None = None,
        best_mode: Literal["max", "min"] = "max",
        fence: Callable[[], None] = lambda: None,
    ):
        self._processes = processes
        self._own: Checkpointer | None = None  # stays None but on rank 0

        def make() -> None:
            self._own = Checkpointer(directory, keep=keep, best=best, best_mode=best_mode, fence=fence)

        processes.broadcast_object(make)
        blind = [process for process, sees in enumerate(processes.all_gather_object(directory.is_dir())) if not sees]
        if blind:
            raise not_shared(directory, blind)

    def save(self, step: int, state: Any, *, extra: dict[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """See `Checkpointer.save`."""
        self._write(lambda own: own.save(step, state, extra=extra, metrics=metrics))

    def wait(self) -> None:
        """See `Checkpointer.wait`."""
        self._write(Checkpointer.wait)

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """See `Checkpointer.restore_latest`."""
        found: list[Restored] = []  # stays empty but on rank 0

        def restore(own: Checkpointer) -> tuple[int, dict[str, Any], dict[str, str]] | None:
            restored = own.restore_latest(like, up_to=up_to, defaults=defaults, replaceable=replaceable)
            found.extend(filter(None, [restored]))
            return (found[0].step, found[0].extra, dict(found[0].replaced)) if found else None

        about = self._on_rank_zero(restore)
        if about is None:
            return None
        step, extra, replaced = about
        leaves = iter(jax.tree.leaves([each.state for each in found]))
        # One leaf at a time, because MPI libraries count the bytes of a message with 32 bits.
        arrays = jax.tree.map(lambda _: self._processes.broadcast_object(lambda: np.asarray(next(leaves))), like)
        state = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), arrays, like)
        return Restored(step, state, extra, replaced)

    def close(self) -> None:
        """See `Checkpointer.close`."""
        self._write(Checkpointer.close)

    def _write(self, act: Callable[[Checkpointer], None]) -> None:
        """Do `act` on rank 0, and raise its NotSaved on all, which a broadcast would make a plain InputError."""

        def failure_of(own: Checkpointer) -> str:
            try:
                act(own)
            except NotSaved as error:
                return str(error)
            return ""

        if failure := self._on_rank_zero(failure_of):
            raise NotSaved(failure)

    def _on_rank_zero(self, act: Callable[[Checkpointer], Any]) -> Any:
        def on_first() -> Any:
            assert self._own is not None, "rank 0 made it in __init__"
            return act(self._own)

        return self._processes.broadcast_object(on_first)
