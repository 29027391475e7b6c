"""What brings a run back when its numbers go wrong: from a checkpoint, or not at all."""

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
from jaxnet.training.guard import GuardCounts, GuardMonitor, GuardState
from jaxnet.training.prepare import Experiment


class Recovery:
    """Watches the numbers of a run, and brings it back. All processes make the same calls in the same order.

    Args:
        guard: what is to be done.
        experiment: of the run.
        checkpoints: of the run.
        past: what the run has met before.
        say: takes a line for a person.
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
        self._watch = GuardMonitor(guard, names, past, experiment.form.agree_after)
        self._replicas = Replicas(experiment.layout, experiment.form.options.ranks, gathered)

    @property
    def counts(self) -> GuardCounts:
        """What the run has met."""
        return self._watch.counts

    @property
    def past(self) -> GuardState:
        """The same, and more that is saved with it."""
        return self._watch.past

    def lag_at(self, step: int) -> int:
        """How many of the steps up to `step`, which is done, changed nothing that is left."""
        return self._watch.lag_at(step)

    @property
    def must_go_back(self) -> bool:
        """Whether too many steps were skipped in a row."""
        return self._watch.limit is not None

    def push(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Step number `step` (from 1) was dispatched."""
        for line in self._watch.push(step, metrics):
            self._say(line)

    def drain(self) -> None:
        """Wait for all dispatched steps, and look at them."""
        for line in self._watch.drain():
            self._say(line)

    def gone_back(self, state: TrainState, step: int) -> TrainState:
        """The state of the last checkpoint before what went wrong, with the count of steps that the run has reached.

        So the run goes on with the examples of step `step`, and none is seen again.
        """
        self.drain()
        limit, most = self._watch.limit, self._guard.max_rollbacks
        assert limit is not None
        if self.counts.rollbacks >= most:
            raise self._ended(self._watch.hopeless(f"the run has gone back {most} times already (guard.max_rollbacks)"))
        restored = self._restored(limit)
        if restored is None:
            raise self._ended(self._watch.hopeless(f"there is no checkpoint of step {limit} or before to go back to"))
        self._say(self._watch.went_back(restored.step, step, GuardState.saved(restored.extra).lag))
        return self._layout.cut(restored.state)._replace(step=state.step, scale=state.scale)

    def asks(self, step: int, *, saving: bool) -> bool:
        """Whether devices compare their states after `step` steps; with copies a round must end there."""
        every, length = self._guard.check_replicas_every, self._round
        if every is None or step % length:
            return False
        return saving or step // every != (step - length) // every

    def repaired(self, state: TrainState, step: int) -> tuple[TrainState, int] | None:
        """None if all devices hold the same state; else that of the last checkpoint, with its step.

        Every checkpoint is of a state on which all agreed, so the newest is a good one.

        Raises:
            InputError: they differ, and the run is to stop then, or has gone back often enough.
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
            raise self._ended(InputError(f"{what}; {cure}"))
        if self.counts.rollbacks >= self._guard.max_rollbacks:
            raise self._ended(InputError(f"{what}; the run has gone back {self.counts.rollbacks} times already"))
        restored = self._restored(None)
        if restored is None:
            raise InputError(f"{what}; there is no checkpoint to go back to")
        self._watch.restarted(GuardState.saved(restored.extra).lag)
        self._say(f"{what}: training again from step {restored.step}")
        return self._layout.cut(restored.state), restored.step

    def _ended(self, error: InputError) -> InputError:
        """The error, once what is being saved is on the disk."""
        self._checkpoints.wait()
        return error

    def _restored(self, limit: int | None) -> Restored | None:
        return restore(self._experiment, self._checkpoints, self._say, limit)
