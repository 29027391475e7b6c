"""Checkpoints of a run that goes on when one of them cannot be written."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxnet.checkpoints.checkpoints import Checkpoints, NotSaved, Restored
from jaxnet.checkpoints.defaults import NO_DEFAULTS, Replaceable
from jaxnet.checkpoints.one_writer import OneWriter


class Enduring:
    """The methods of `Checkpoints`, of which `save` and `wait` say in a line that a step is not on the disk.

    Each `save` that is due is tried, whatever became of the one before. Whatever is no fault of the storage is raised
    as ever: another run has taken over, a step is older than those there.

    Attributes:
        unsaved: why the last save failed; "" if it went well.
    """

    def __init__(self, checkpoints: Checkpoints | OneWriter, say: Callable[[str], None]):
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
