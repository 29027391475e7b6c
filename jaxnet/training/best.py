"""The best evaluation on the validation examples so far, and the end of a run that gets no better."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxnet.config.run import EarlyStopping
from jaxnet.tasks.task import Task, metric_text
from jaxnet.training.observer import Observer, task_metrics


class _Best(NamedTuple):
    """The best evaluation up to some step.

    Attributes:
        step: after which it was made; -1: there was none.
        value: of the task's metric on the validation examples; None: there was none.
        test: the task's metrics on the test examples after the same step.
        since: evaluations after it, none of which was better.
        at: the step of the last of them.
    """

    step: int = -1
    value: float | None = None
    test: Mapping[str, float] = {}
    since: int = 0
    at: int = -1


class BestEvaluation(Observer):
    """Remembers the best evaluation, and stops the run after `patience` evaluations that were not better.

    It is saved with each checkpoint, so that a run which has ended early stays ended when it is started again.

    Args:
        task: says which metric counts, and whether more or less of it is better.
        stopping: when the run ends early.
        saved: what `to_save` gave, of the checkpoint from which the run goes on; None: it begins.
    """

    def __init__(self, task: Task, stopping: EarlyStopping, saved: Mapping[str, Any] | None) -> None:
        self._metric, self._sign = task.best, 1 if task.best_mode == "max" else -1
        self._stopping = stopping
        self._past = [_Best(**saved) if saved else _Best()]  # the newest last

    @property
    def ended(self) -> bool:
        """Whether so many evaluations were not better that the run is over."""
        return self._stopping.patience is not None and self._past[-1].since >= self._stopping.patience

    @property
    def reason(self) -> str:
        """Why the run is over, in words."""
        best = self._past[-1]
        evaluations = f"{best.since} evaluation{'s' * (best.since > 1)}"
        if best.value is None:
            return f"no {self._metric} on the validation examples in {evaluations}"
        value = metric_text(self._metric, best.value)
        return f"no better {self._metric} on the validation examples than {value} at step {best.step}, in {evaluations}"

    @property
    def step(self) -> int | None:
        """After which it was made; None: there was none."""
        best = self._past[-1]
        return None if best.value is None else best.step

    def to_save(self) -> dict[str, Any]:
        """For what is saved with a checkpoint."""
        return self._past[-1]._asdict()

    def summary(self) -> dict[str, Any] | None:
        """The best evaluation, for summary.json; None if there was none."""
        best = self._past[-1]
        if best.value is None:
            return None
        return {"step": best.step, "metric": self._metric, "validation": best.value, "test": dict(best.test)}

    def on_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> bool | None:
        """Compare an evaluation on the validation examples with the best."""
        best = self._past[-1]
        if split == "validation":
            value = float(values[self._metric])
            if self._improves(value, best.value):
                self._past.append(_Best(step, value, {}, 0, step))
            else:
                self._past.append(best._replace(since=best.since + 1, at=step))
        elif split == "test" and best.step == step:
            self._past[-1] = best._replace(test=task_metrics(values))
        return self.ended

    def _improves(self, value: float, best: float | None) -> bool:
        if best is None:
            return not math.isnan(value)
        return self._sign * (value - best) > self._stopping.min_delta

    def on_rewind(self, step: int) -> None:
        """Forget the evaluations after a step to which the run went back."""
        while len(self._past) > 1 and self._past[-1].at > step:
            self._past.pop()
