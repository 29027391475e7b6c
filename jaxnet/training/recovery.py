"""Roll a run back to a checkpoint: after too many skipped steps, or when devices hold different states."""

from collections.abc import Callable
from typing import Any

import jax

from jaxnet.checkpoints import Checkpointer, FaultTolerantCheckpoints, OneWriter, Restored
from jaxnet.config.run import Guard
from jaxnet.errors import InputError
from jaxnet.parallel.device_step import not_finite_names
from jaxnet.parallel.replicas import Replicas
from jaxnet.parallel.state import TrainState
from jaxnet.training.checkpointing import restore
from jaxnet.training.experiment import Experiment
from jaxnet.training.guard import GuardCounts, GuardMonitor, GuardState


class Recovery:
    """Follows the metrics of a run, and rolls it back. All processes make the same calls in the same order.

    Args:
        guard: when to roll back, and how often.
        experiment: of the run.
        checkpoints: of the run.
        past: what earlier processes of the run have counted.
        say: prints a line.
        gathered: see `Replicas`.
    """

    def __init__(
        self,
        guard: Guard,
        experiment: Experiment,
        checkpoints: Checkpointer | FaultTolerantCheckpoints | OneWriter,
        past: GuardState,
        say: Callable[[str], None],
        gathered: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        self._guard, self._say = guard, say
        self._checkpoints = checkpoints
        self._experiment = experiment
        self._layout = experiment.layout
        self._round = experiment.form.round_steps
        names = not_finite_names(experiment.layout.whole_shapes.params)
        self._monitor = GuardMonitor(guard, names, past, experiment.form.agree_after)
        self._replicas = Replicas(experiment.layout, experiment.form.options.ranks, gathered)

    @property
    def counts(self) -> GuardCounts:
        """Steps skipped, loss spikes and rollbacks since the first step of the run."""
        return self._monitor.counts

    @property
    def past(self) -> GuardState:
        """The counts, and what else a checkpoint saves of the guard."""
        return self._monitor.past

    def lag_at(self, step: int) -> int:
        """How many updates the schedules are behind `step`, a finished step: those skipped or rolled back."""
        return self._monitor.lag_at(step)

    @property
    def must_roll_back(self) -> bool:
        """Whether too many steps were skipped in a row."""
        return self._monitor.limit is not None

    def push(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Step number `step` (from 1) was dispatched."""
        for line in self._monitor.push(step, metrics):
            self._say(line)

    def drain(self) -> None:
        """Wait for all dispatched steps, and look at them."""
        for line in self._monitor.drain():
            self._say(line)

    def roll_back(self, state: TrainState, step: int) -> TrainState:
        """The state of the last checkpoint before the skipped steps; its count of steps stays that of `state`.

        So the run continues with the examples of step `step`, and sees none of them twice.
        """
        self.drain()
        limit, most = self._monitor.limit, self._guard.max_rollbacks
        assert limit is not None
        if self.counts.rollbacks >= most:
            why = f"the run has gone back {most} times already (guard.max_rollbacks)"
            raise self._after_saving(self._monitor.cannot_roll_back(why))
        restored = self._restored(limit)
        if restored is None:
            why = f"there is no checkpoint of step {limit} or before to go back to"
            raise self._after_saving(self._monitor.cannot_roll_back(why))
        self._say(self._monitor.rolled_back(restored.step, step, GuardState.saved(restored.extra).lag))
        return self._layout.cut(restored.state)._replace(step=state.step, scale=state.scale)

    def compares_replicas_after(self, step: int, *, saving: bool) -> bool:
        """Whether devices compare their states after `step` steps; under local SGD only where a round ends."""
        every, length = self._guard.check_replicas_every, self._round
        if every is None or step % length:
            return False
        return saving or step // every != (step - length) // every

    def check_replicas(self, state: TrainState, step: int) -> tuple[TrainState, int] | None:
        """None if all devices hold the same state; else the state of the newest checkpoint, and its step.

        Devices agreed on the state of every checkpoint, so the newest one is good.

        Raises:
            InputError: they differ, and `guard.on_difference` is 'stop', or the run has gone back too often.
        """
        found = self._replicas.difference(state)
        if found is None:
            return None
        what = f"after step {step}, devices that should hold the same state do not: {found}"
        if self._guard.on_difference == "stop":
            cure = (
                "memory or a link of that device may be faulty. No checkpoint was made of it: run again to continue "
                "from the last one, on other hardware if it happens again"
            )
            raise self._after_saving(InputError(f"{what}; {cure}"))
        if self.counts.rollbacks >= self._guard.max_rollbacks:
            raise self._after_saving(InputError(f"{what}; the run has gone back {self.counts.rollbacks} times already"))
        restored = self._restored(None)
        if restored is None:
            raise InputError(f"{what}; there is no checkpoint to go back to")
        self._monitor.rewound(GuardState.saved(restored.extra))
        self._say(f"{what}: training again from step {restored.step}")
        return self._layout.cut(restored.state), restored.step

    def _after_saving(self, error: InputError) -> InputError:
        """The error, once the checkpoint that is being written is on disk."""
        self._checkpoints.wait()
        return error

    def _restored(self, limit: int | None) -> Restored | None:
        return restore(self._experiment, self._checkpoints, self._say, limit)
