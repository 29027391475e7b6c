"""What brings a run back when its numbers go wrong: from a checkpoint, or not at all."""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax

from jaxnet.checkpoints import Checkpointer, FaultTolerantCheckpoints, OneWriter, Restored
from jaxnet.config.run import Guard
from jaxnet.data import DeviceBatch
from jaxnet.errors import InputError
from jaxnet.parallel.device_step import not_finite_names
from jaxnet.parallel.replicas import Replicas
from jaxnet.parallel.state import TrainState
from jaxnet.training.beginning import restore
from jaxnet.training.guard import GuardCounts, GuardMonitor, GuardState
from jaxnet.training.prepare import Experiment


class BatchStream:
    """The batches of a run from a step on, which can be taken up again from another.

    >>> stream = BatchStream(lambda step: (number for number in range(step, 9)), 3)
    >>> next(stream), next(stream), stream.rewind(1), next(stream)
    (3, 4, None, 1)
    """

    def __init__(self, make: Callable[[int], Generator[DeviceBatch, None, None]], step: int) -> None:
        self._make = make
        self._batches = make(step)

    def __iter__(self) -> Iterator[DeviceBatch]:
        return self

    def __next__(self) -> DeviceBatch:
        return next(self._batches)

    def rewind(self, step: int) -> None:
        """Go on with the batch that follows `step` steps."""
        self.close()
        self._batches = self._make(step)

    def close(self) -> None:
        """Close what makes the batches."""
        self._batches.close()


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
        averaging = experiment.strategy.averaging
        self._guard, self._say = guard, say
        self._checkpoints = checkpoints
        self._experiment = experiment
        self._layout = experiment.layout
        self._round = 1 if averaging is None else averaging.every
        first = 0 if averaging is None else averaging.synchronous_steps
        names = not_finite_names(experiment.layout.whole_shapes.params)
        self._watch = GuardMonitor(guard, names, past, lambda step: step <= first or step % self._round == 0)
        self._replicas = Replicas(experiment.layout, experiment.ranks, gathered)

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
