"""The loop: batch, step, log, guard, evaluate, save, stop."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from jaxnet.parallel.device_step import NOT_FINITE
from jaxnet.parallel.state import TrainState
from jaxnet.training.batches import BatchStream
from jaxnet.training.experiment import Experiment
from jaxnet.training.guard import GuardCounts
from jaxnet.training.observer import Dispatched, Observer
from jaxnet.training.pacing import LearningRates, LogLine, Pace
from jaxnet.training.recovery import Recovery
from jaxnet.training.stopping import StopSignal

Values = dict[str, Any]
SaveFn = Callable[[TrainState, int, bool], None]


class Outcome(NamedTuple):
    """How a loop ended.

    Attributes:
        state: the last.
        step: steps done in all.
        evaluation: the last, by split; empty if there was none.
        evaluated: after how many steps that was; None if there was none.
        signal: what stopped it before the end, such as 'SIGTERM'; None if nothing did.
        seconds: spent on training steps.
        waited: the part of them in which a batch was made and the devices had nothing to do when it came.
        met: steps skipped, loss spikes and rollbacks, since the first step of the run.
    """

    state: TrainState
    step: int
    evaluation: Mapping[str, Values]
    evaluated: int | None
    signal: str | None
    seconds: float
    waited: float
    met: GuardCounts


@dataclass
class Loop:
    """Trains to the last step or to a signal.

    Attributes:
        experiment: what is trained.
        step: the compiled step.
        evaluate: what to log of a state's evaluation, by split.
        save: `save(state, step, owed)`: writes a checkpoint. `owed`: an evaluation is still to be made.
        guard: what is done about numbers that go wrong.
        observers: all that watches; see `Observer`.
    """

    experiment: Experiment
    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
    evaluate: Callable[[TrainState], dict[str, Values]]
    save: SaveFn
    guard: Recovery
    observers: Sequence[Observer]
    _wanted: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        every = self.experiment.config.log.every_steps
        schedule = self.experiment.learning_rate
        self._rates = None if schedule is None else LearningRates(schedule, every)
        # Last: its clock runs from here.
        self._pace = Pace(every, self.experiment.config.task.reported)

    def run(
        self,
        state: TrainState,
        batches: BatchStream,
        step: int,
        stop: StopSignal,
        *,
        owes_evaluation: bool = False,
        ended: bool = False,
    ) -> Outcome:
        """Train on from `step`, unless the run has `ended`; first make the evaluation that a stop left out."""
        config, total = self.experiment.config, self.experiment.total_steps
        evaluation: Mapping[str, Values] = {}
        evaluated = None
        eval_every = max(1.0, config.eval_every_epochs * self.experiment.steps_per_epoch)
        with stop:
            if owes_evaluation:
                evaluation, evaluated = self._evaluate(state, step), step
            finished = step >= total or ended or self._wanted is not None
            while not finished:
                # 1. One step.
                state = self._one(state, batches, step)
                step += 1

                # 2. Too many steps skipped in a row: the last good state, with the count of steps that was reached.
                if rolls_back := self.guard.must_roll_back:
                    state = self._roll_back(state, step)

                # 3. What is due: a stop is quick, so whoever continues makes up for its evaluation.
                signalled = stop.should_stop(step) or self._wanted is not None
                finished = signalled or step == total
                due = step == total or _is_due(step, eval_every)
                evaluates = due and (step == total or not signalled)
                saves = finished or evaluates or rolls_back or step % config.checkpoints.every_steps == 0

                # 4. Devices that hold different states: back to the last checkpoint, of which all had the same.
                if (earlier := self._check_replicas(state, step, saves)) is not None:
                    (state, step), finished = earlier, signalled
                    for observer in self.observers:
                        observer.on_rewind(step)
                    self._pace.forget()
                    batches.rewind(step)
                    continue

                # 5. Evaluate, then save: the checkpoint says whether it is the best so far.
                if evaluates:
                    evaluation, evaluated = self._evaluate(state, step), step
                    finished = finished or self._wanted is not None
                if saves:
                    self._save(state, step, owed=due and not evaluates)
            self._log(self._pace.drain(last=True))
            self.guard.drain()
            for observer in self.observers:
                observer.on_end(step)
        reason = (stop.reason or self._wanted) if step < total else None
        pace = self._pace
        return Outcome(state, step, evaluation, evaluated, reason, pace.seconds, pace.waited, self.guard.counts)

    def _one(self, state: TrainState, batches: BatchStream, step: int) -> TrainState:
        for observer in self.observers:
            observer.before_step(step)
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked if self._pace.is_idle() else 0.0
        state, metrics = self.step(state, batch)
        scalars = {name: value for name, value in metrics.items() if name != NOT_FINITE}
        # At most two steps are in flight: this waits for the one before, and logs what is done.
        self._log(self._pace.push(step + 1, scalars, waited))
        self.guard.push(step + 1, metrics)
        dispatched = Dispatched(step + 1, state, metrics, waited, self._pace.blocked)
        for observer in self.observers:
            observer.after_step(dispatched)
        return state

    @contextlib.contextmanager
    def _pause(self, what: str, kind: str = "other") -> Iterator[None]:
        """Inside, something is done that is no step; all dispatched ones are logged first."""
        self._log(self._pace.drain())
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._pace.paused())
            for observer in self.observers:
                stack.enter_context(observer.pause(what, kind))
            yield

    def _roll_back(self, state: TrainState, step: int) -> TrainState:
        with self._pause("a rollback"):
            return self.guard.roll_back(state, step)

    def _check_replicas(self, state: TrainState, step: int, saves: bool) -> tuple[TrainState, int] | None:
        if not self.guard.compares_replicas_after(step, saving=saves):
            return None
        with self._pause("the comparison of devices"):
            return self.guard.check_replicas(state, step)

    def _evaluate(self, state: TrainState, step: int) -> dict[str, Values]:
        with self._pause("an evaluation", "evaluation"):
            found = self.evaluate(state)
        for split, values in found.items():
            self._tell(step, split, values)
        return found

    def _save(self, state: TrainState, step: int, *, owed: bool) -> None:
        self._log(self._pace.drain())
        self.guard.drain()
        with self._pause("a checkpoint", "checkpoint"):
            self.save(state, step, owed)

    def _log(self, lines: Iterator[LogLine]) -> None:
        for step, values in lines:
            rate = self.experiment.config.batch_size / values["step_seconds"]
            values |= {
                "examples_per_second": rate,
                **{f"{unit}_per_second": count * rate for unit, count in self.experiment.units.items()},
                **({"learning_rate": self._rates(step - self.guard.lag_at(step))} if self._rates else {}),
                "epoch": step / self.experiment.steps_per_epoch,
            }
            self._tell(step, "train", values)

    def _tell(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        for observer in self.observers:
            if observer.on_metrics(step, split, values):
                self._wanted = type(observer).__name__


def _is_due(step: int, every: float) -> bool:
    """Whether `step` is the one nearest to a multiple of `every`, which may be a fraction."""
    return round(round(step / every) * every) == step
