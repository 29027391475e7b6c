"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from jaxnet.errors import drop, printable, say, spared
from jaxnet.training.observer import Dispatched, Observer, metrics_text


def say_warning(line: str) -> None:
    """One line for a person, that something is wrong."""
    logging.getLogger("jaxnet").warning("%s", line)


def say_nothing(line: str) -> None:
    """What processes but the first do with a line for a person."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        drop(self.file, BrokenPipeError())  # Rich would end the process, which is to save


class Display(Observer):
    """Prints the lines of a run, and in a terminal keeps a progress bar below them. Use it in a `with` statement.

    Without a `bar` it prints lines alone: under mpirun a file looks like a terminal. A line that a full disk does not
    take, or that nobody reads any more, is dropped.
    """

    def __init__(self, total_steps: int, first_step: int, *, silent: bool = False, bar: bool = True) -> None:
        self._silent = silent
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        console = _Console()
        if console.is_terminal and bar and not silent:
            columns = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[news]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("train", total=total_steps, completed=first_step, news="compiling")
        self._total = total_steps

    def __enter__(self) -> "Display":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away; lines can still be printed."""
        if self._bar is not None:
            with spared(self._bar.console.file):
                self._bar.stop()
            self._bar = None

    def after_step(self, dispatched: Dispatched) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=dispatched.step)

    def on_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Means over the last steps beside the bar, or in a line; an evaluation in a line."""
        if split == "train":
            self._training(step, values)
        else:
            self.say(f"{split} at step {step}: {metrics_text(values)}")

    def _training(self, step: int, values: Mapping[str, float]) -> None:
        rate, wait = values["examples_per_second"], values["data_wait_seconds"] / values["step_seconds"]
        news = (
            f"{metrics_text(values)}  {rate:,.0f} examples/s  "
            f"{values['step_seconds'] * 1e3:.1f} ms/step  data wait {wait:.1%}"
        )
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, news=news)
            return
        remaining = (self._total - step) * values["step_seconds"]
        self.say(f"step {step:>6}/{self._total}  {news}  {remaining:.0f} s left")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._silent:
            return
        if self._bar is not None:
            with spared(self._bar.console.file):
                self._bar.console.print(printable(line, keep="\n\t"), markup=False, highlight=False, soft_wrap=True)
        else:
            say(line, sys.stdout)
