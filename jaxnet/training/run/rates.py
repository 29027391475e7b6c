"""The learning rate of the steps that are logged."""

import jax
import numpy as np
import optax

_AT_ONCE = 1024


class Rates:
    """`rates(update)` is the learning rate of update number `update`, from 1, as Optax counts them.

    They are computed by the thousand, `every` apart: what is dispatched to a device while steps are in flight waits for
    these, and so would the loop, at every line.

    >>> rates = Rates(lambda step: 1.0 - step / 8, every=2)
    >>> rates(2), rates(4), rates(5)
    (0.875, 0.625, 0.5)
    """

    def __init__(self, schedule: optax.Schedule, every: int) -> None:
        self._every = every
        self._many = jax.jit(jax.vmap(schedule))
        self._compute(0, 0)

    def __call__(self, update: int) -> float:
        line, after = divmod(update, self._every)
        chunk, place = divmod(line, _AT_ONCE)
        if (chunk, after) != self._there:
            self._compute(chunk, after)
        return float(self._values[place])

    def _compute(self, chunk: int, after: int) -> None:
        lines = np.arange(chunk * _AT_ONCE, (chunk + 1) * _AT_ONCE, dtype=np.int64)
        before = np.clip(lines * self._every + after - 1, 0, np.iinfo(np.int32).max).astype(np.int32)
        self._there, self._values = (chunk, after), np.asarray(self._many(before))
