"""What hangs on the loop: everything that watches a run and computes no step."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from jaxnet.parallel.state import TrainState
from jaxnet.tasks.evaluation import OF_MEMBERS
from jaxnet.tasks.task import metric_text
from jaxnet.training.guard import GuardCounts

TRAINER_FIGURES = frozenset(
    [
        *("step", "split", "epoch", "learning_rate", "step_seconds", "data_wait_seconds", "skipped", "loss_scale"),
        *("examples", "damaged_records"),
    ]
)
"""What a line of metrics holds besides the task's metrics; and all names that end in `_per_second`."""

SUMMARY_FIGURES = (
    *("steps", "finished", "ended_early", "members", "metrics", "evaluated_step", "best", "strategy"),
    *("wire_bytes_per_step", "wire_bytes_per_axis", "data_wait_fraction", "examples_per_second", "train_seconds"),
    *(*GuardCounts._fields, "mesh", "processes", "seed", "damaged_records", "stragglers", "seconds", "not_saved"),
)
"""What summary.json holds besides the metrics of the test and how many examples it had; `members` of an ensemble."""


def task_metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """The task's metrics of a line, the loss first, without those of an ensemble's members.

    >>> task_metrics({"loss": 0.5, "examples": 360, "member_0/loss": 0.4, "tokens_per_second": 9.0})
    {'loss': 0.5}
    """
    others = [name for name in values if name not in TRAINER_FIGURES and not name.startswith(OF_MEMBERS)]
    names = sorted((name for name in others if not name.endswith("_per_second")), key=lambda name: name != "loss")
    return {name: values[name] for name in names}


def metrics_text(values: Mapping[str, Any], between: str = "  ") -> str:
    """The task's metrics of a line in words; an accuracy in percent.

    >>> metrics_text({"loss": 0.5, "accuracy": 0.25, "epoch": 1.0})
    'loss 0.5000  accuracy 25.00%'
    """
    shown = task_metrics(values).items()
    return between.join(f"{name} {metric_text(name, value)}" for name, value in shown)


class Dispatched(NamedTuple):
    """A step that was handed to the devices. They may not have run it yet.

    Attributes:
        step: its number, from 1.
        state: after it.
        metrics: its metrics; reading one waits for the devices.
        waited: seconds in which its batch was made while the devices had nothing to do.
        blocked: seconds that the loop has waited for the devices since it began.
    """

    step: int
    state: TrainState
    metrics: Mapping[str, jax.Array]
    waited: float
    blocked: float


class Observer:
    """Watches the steps of a run. Every method does nothing; a subclass overrides those that it needs.

    All processes of a run make the same calls in the same order.

    >>> class Stop(Observer):
    ...     '''Stops the run once the test accuracy is good enough.'''
    ...     def on_metrics(self, step, split, values):
    ...         return split == "test" and values["accuracy"] > 0.99
    """

    def before_step(self, step: int) -> None:
        """`step` steps were dispatched, and the next one is about to be."""

    def after_step(self, dispatched: Dispatched) -> None:
        """A step was dispatched. Do not wait for its values: the devices would run dry."""

    @contextlib.contextmanager
    def pause(self, what: str, kind: str) -> Iterator[None]:
        """Inside, something is done that is no step: `what`, of the kind 'evaluation', 'checkpoint' or 'other'."""
        yield

    def on_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> bool | None:
        """Figures up to `step`: means over the last training steps ('train'), or of an evaluation ('validation' or
        'test').

        True stops the run after this step. All processes must answer alike; metrics are the same on all, times are not.
        """

    def on_rewind(self, step: int) -> None:
        """The run went back to the state after `step` steps, and does the steps after it again."""

    def on_end(self, step: int) -> None:
        """All steps up to `step` are done, and no other begins."""
