"""The loop: batch, step, log, evaluate, save, stop on a signal."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from jaxnet.checkpoints import FaultTolerantCheckpoints
from jaxnet.config.keys import flatten
from jaxnet.config.run import Config
from jaxnet.data import Inputs
from jaxnet.parallel.device_step import NOT_FINITE
from jaxnet.parallel.state import TrainState
from jaxnet.training.beginning import OWES_EVALUATION
from jaxnet.training.display import Display
from jaxnet.training.guard import GuardCounts
from jaxnet.training.inputs import Evaluate
from jaxnet.training.ledger import Ledger
from jaxnet.training.pacing import LogLine, Pace, Rates
from jaxnet.training.peers import Peers
from jaxnet.training.place import decoder
from jaxnet.training.prepare import Experiment
from jaxnet.training.profiling import ProfileWindow
from jaxnet.training.records import MetricsWriter, NoMetricsWriter
from jaxnet.training.recovery import BatchStream, Recovery
from jaxnet.training.stopping import StopSignal
from jaxnet.training.watchdog import Watchdog


class Outcome(NamedTuple):
    """How a loop ended.

    Attributes:
        state: the last.
        step: steps done in all.
        evaluation: the last; empty if there was none.
        signal: name of the signal that stopped it, or None.
        seconds: spent on training steps.
        waited: part of them in which a batch was made and the devices had nothing to do when it came.
        met: steps skipped, loss spikes and rollbacks, since the first step of the run.
    """

    state: TrainState
    step: int
    evaluation: dict[str, float]
    signal: str | None
    seconds: float
    waited: float
    met: GuardCounts


@dataclass
class Loop:
    """What surrounds the steps.

    Attributes:
        config: of the run.
        experiment: of the run.
        step: the compiled step.
        evaluate: loss and accuracy of a state on the test split.
        checkpoints: where states are saved.
        records: where metrics are written.
        display: what a person sees.
        profile: the window of steps to trace.
        inputs: what the model takes and gives, saved with each state for who uses it later.
        stop: tells when to stop before the end.
        recovery: what is done about numbers that go wrong.
        alarm: ends a run that hangs.
        ledger: where the time goes.
        peers: what the processes tell each other.
    """

    config: Config
    experiment: Experiment
    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
    evaluate: Evaluate
    checkpoints: FaultTolerantCheckpoints
    records: MetricsWriter | NoMetricsWriter
    display: Display
    profile: ProfileWindow
    inputs: Inputs
    stop: StopSignal
    recovery: Recovery
    alarm: Watchdog
    ledger: Ledger
    peers: Peers

    def __post_init__(self) -> None:
        self._settings = flatten(self.config)
        self._rates = Rates(self.experiment.learning_rate, self.config.log.every_steps)
        self._pace = Pace(self.config.log.every_steps)  # last: its clock runs from here

    def run(self, state: TrainState, batches: BatchStream, step: int, *, owes_evaluation: bool = False) -> Outcome:
        """Train from `step` to the end or to a signal, and save the last state; first evaluate what a stop left out."""
        config, total, evaluation = self.config, self.experiment.total_steps, {}
        eval_every = max(1.0, config.eval_every_epochs * self.experiment.steps_per_epoch)
        with self.stop as stop, self.ledger.during("step"):
            if owes_evaluation:
                evaluation = self._evaluate(state, step)
            stopped = step >= total
            while not stopped:
                state = self._one(state, batches, step)
                step += 1
                if back := self.recovery.must_go_back:
                    state = self._gone_back(state, step)
                signalled = stop.should_stop(step)
                stopped = signalled or step == total
                due = step == total or _is_due(step, eval_every)
                evaluated = due and (step == total or not signalled)  # a stop is quick; who continues evaluates
                saving = stopped or evaluated or back or step % config.checkpoints.every_steps == 0
                if (earlier := self._repaired(state, step, saving)) is not None:
                    (state, step), stopped = earlier, signalled
                    self.ledger.went_back(step)
                    batches.rewind(step)
                    continue
                if evaluated:
                    evaluation = self._evaluate(state, step)
                if saving:
                    self._save(state, step, evaluation if evaluated else None, owed=due and not evaluated)
            self._log(self._pace.drain(last=True))
            self.recovery.drain()
            self.alarm.ended(step)
            self.profile.close()
            with self.ledger.during("checkpoint"):
                self.checkpoints.wait()
            if step < total:
                self.display.say(f"stopped by {stop.signal_name} after step {step}; run again to continue")
        seconds, waited = self._pace.seconds, self._pace.waited
        signal = stop.signal_name if step < total else None
        return Outcome(state, step, evaluation, signal, seconds, waited, self.recovery.counts)

    def _one(self, state: TrainState, batches: BatchStream, step: int) -> TrainState:
        self.profile.before(step)
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked if self._pace.is_idle() else 0.0
        self.ledger.waited(waited)
        state, metrics = self.step(state, batch)
        plain = {name: value for name, value in metrics.items() if name != NOT_FINITE}
        self._log(self._pace.push(step + 1, plain, waited))
        self.recovery.push(step + 1, metrics)
        self.profile.after(step, state)
        self.display.advance(step + 1)
        self.alarm.stepped(step + 1)
        self.ledger.reached(step + 1)
        self.peers.own.stepped(self._pace.blocked)
        return state

    @contextlib.contextmanager
    def _aside(self, what: str, kind: str = "other") -> Iterator[None]:
        """Inside, something is done that is no step; `kind` is that of the ledger."""
        with self._pace.paused(), self.alarm.during(what), self.ledger.during(kind):
            yield
        self.peers.own.pause()

    def _gone_back(self, state: TrainState, step: int) -> TrainState:
        self._log(self._pace.drain())
        with self._aside("a rollback"):
            return self.recovery.gone_back(state, step)

    def _repaired(self, state: TrainState, step: int, saving: bool) -> tuple[TrainState, int] | None:
        if not self.recovery.asks(step, saving=saving):
            return None
        self._log(self._pace.drain())
        with self._aside("the comparison of devices"):
            return self.recovery.repaired(state, step)

    def _log(self, lines: Iterator[LogLine]) -> None:
        for step, values in lines:
            values |= {
                "examples_per_second": self.config.batch_size / values["step_seconds"],
                "learning_rate": self._rates(step - self.recovery.lag_at(step)),
                "epoch": step / self.experiment.steps_per_epoch,
            }
            self.records.write(step, "train", values)
            self.display.training(step, values)
            self.peers.share()

    def _evaluate(self, state: TrainState, step: int) -> dict[str, float]:
        self._log(self._pace.drain())
        with self._aside("an evaluation", "evaluation"):
            result = self.evaluate(state)
            damaged = self.peers.gather().damaged
        self.records.write(step, "test", {**result, **({"damaged_records": damaged} if damaged else {})})
        self.display.evaluation(step, result)
        return result

    def _save(self, state: TrainState, step: int, evaluation: dict[str, float] | None, *, owed: bool) -> None:
        self._log(self._pace.drain())
        self.recovery.drain()
        with self._aside("a checkpoint", "checkpoint"):
            said = {"config": self._settings, "inputs": self.inputs.as_json(), **decoder(self.config)}
            extra = {**said, "next_step": step, "guard": self.recovery.past.to_save(), OWES_EVALUATION: owed}
            whole = self.experiment.layout.whole(state)
            self.checkpoints.save(step, whole, extra=extra, metrics=evaluation)


def _is_due(step: int, every: float) -> bool:
    """Whether `step` is the one nearest to a multiple of `every`, which may be a fraction."""
    return round(round(step / every) * every) == step
