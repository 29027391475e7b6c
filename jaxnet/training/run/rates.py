"""The learning rate of the steps that are logged."""

import jax
import numpy as np
import optax

_AT_ONCE = 1024


class Rates:
    """`rates(step)` is the learning rate of step number `step`, from 1; those of every `every` steps are at hand.

    They are computed by the thousand: what is dispatched to a device while steps are in flight waits for these, and so
    would the loop, at every line.

    >>> rates = Rates(lambda step: 1.0 - step / 8, every=2)
    >>> rates(2), rates(4), rates(5)
    (0.875, 0.625, 0.5)
    """

    def __init__(self, schedule: optax.Schedule, every: int) -> None:
        self._schedule, self._every = schedule, every
        self._many = jax.jit(jax.vmap(schedule))
        self._compute(0)

    def __call__(self, step: int) -> float:
        if step % self._every:
            return float(self._schedule(step - 1))
        chunk, place = divmod(step // self._every, _AT_ONCE)
        if chunk != self._chunk:
            self._compute(chunk)
        return float(self._values[place])

    def _compute(self, chunk: int) -> None:
        lines = np.arange(chunk * _AT_ONCE, (chunk + 1) * _AT_ONCE, dtype=np.int64)
        before = np.clip(lines * self._every - 1, 0, np.iinfo(np.int32).max).astype(np.int32)
        self._chunk, self._values = chunk, np.asarray(self._many(before))
