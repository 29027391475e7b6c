"""Checkpoints of a run that goes on when one of them cannot be written."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxnet.checkpoints.checkpointer import Checkpointer, NotSaved, Restored
from jaxnet.checkpoints.leaves import NO_DEFAULTS, Replaceable
from jaxnet.checkpoints.rank_zero import OneWriter


class FaultTolerantCheckpoints:
    """The methods of `Checkpointer`, with storage failures logged in one line instead of raised.

    Each `save` that is due is tried, whether or not the one before succeeded. Errors that are no fault of the storage
    are still raised: another run has taken over, a step is older than those on the disk.

    Attributes:
        unsaved: why the last save failed; "" if it succeeded.
    """

    def __init__(self, checkpoints: Checkpointer | OneWriter, say: Callable[[str], None]):
        self._own, self._say = checkpoints, say
        self.unsaved = ""

    def save(self, step: int, state: Any, *, extra: dict[str, Any], best: int | None = None) -> None:
        """See `Checkpointer.save`; a storage failure is logged."""
        self.wait()
        self.unsaved = ""
        self._try(lambda: self._own.save(step, state, extra=extra, best=best))

    def wait(self) -> None:
        """See `Checkpointer.wait`; a storage failure is logged."""
        self._try(self._own.wait)

    def restore_latest(
        self,
        like: Any,
        *,
        up_to: int | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        replaceable: Replaceable | None = None,
    ) -> Restored | None:
        """See `Checkpointer.restore_latest`."""
        self.wait()
        return self._own.restore_latest(like, up_to=up_to, defaults=defaults, replaceable=replaceable)

    def close(self) -> None:
        """See `Checkpointer.close`; a storage failure is logged."""
        self._try(self._own.close)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NotSaved as error:
            self.unsaved = str(error)
            self._say(f"{error}; those before it are kept")
