"""Show the progress of long work on images: a bar in a terminal, a line every 30 s elsewhere.

This is a file of its own because it loads rich and `jaxnet.data`, which `jaxnet --help` must not wait for.
"""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from jaxnet.data.prepare import PrepareListener
from jaxnet.errors import printable

_EVERY_SECONDS = 30.0


class Watching(PrepareListener):
    """Shows how many images are done, the rate, and the time left. Use it in a `with` statement."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = Console(quiet=silent, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._what, self._total, self._first, self._done = "", 0, 0, 0
        self._started = self._printed = time.monotonic()

    def __enter__(self) -> "Watching":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self._end()
        self._bar.stop()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start to show another piece of work."""
        self._end()
        self._what, self._total, self._first, self._done = what, total, done, done
        self._started = self._printed = time.monotonic()
        self._task = self._bar.add_task(what, total=total, completed=done, news="")

    def advance(self, images: int) -> None:
        """Show that `images` more are done."""
        self._done += images
        if self._task is not None:
            self._bar.update(self._task, completed=self._done, news=f"{self._rate():,.0f} images/s")
        if not self._console.is_terminal and time.monotonic() - self._printed >= _EVERY_SECONDS:
            self._line()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(printable(line), markup=False)

    def _rate(self) -> float:
        return (self._done - self._first) / max(time.monotonic() - self._started, 1e-9)

    def _line(self, *, ended: bool = False) -> None:
        self._printed = time.monotonic()
        rate = self._rate()
        left = f", {(self._total - self._done) / rate:,.0f} s left" if rate and not ended else ""
        self.say(f"{self._what}: {self._done:,} of {self._total:,} images, {rate:,.0f} images/s{left}")

    def _end(self) -> None:
        if self._what and not self._console.is_terminal:
            self._line(ended=True)
        self._what = ""
