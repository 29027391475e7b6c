"""What long work tells whoever waits for it."""

from __future__ import annotations


class Watch:
    """Told how far the work is; this one keeps it to itself."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """`what` has `total` images, and `done` of them are finished already; the last piece of work has ended."""

    def advance(self, images: int) -> None:
        """So many more are finished."""

    def say(self, line: str) -> None:
        """Something that one should know."""
