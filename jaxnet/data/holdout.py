"""Hold examples back from training, by which the best state of a run is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxnet.data.batches import permutation
from jaxnet.data.source import Evaluated, Overlapping, RandomSource, Source
from jaxnet.errors import InputError


def hold_out(source: Source, share: float) -> tuple[Source, Source]:
    """Return the training examples without a share of them, and those: the same ones in every run, whatever its seed.

    A source whose examples overlap says itself which, and one that shows training others than a test is asked for
    those of a test: see `Overlapping` and `Evaluated`.

    Raises:
        InputError: nothing would be left on one of the two sides.

    >>> from jaxnet.data import Digits
    >>> train, held = hold_out(Digits().load("train"), 0.1)
    >>> train.num_examples, held.num_examples
    (1293, 144)
    """
    number = source.num_examples
    held = round(number * share)
    if not 0 < held < number:
        raise InputError(f"validation={share:g}: holds {held} of {number} training examples back; wanted some, not all")
    if isinstance(source, Overlapping):
        return source.hold_out(held)
    order = permutation(0, 0, number)
    kind = _RandomSubset if isinstance(source, RandomSource) else _Subset
    evaluated = source.evaluated() if isinstance(source, Evaluated) else source
    # In the order of the data set, in which neighbours are read faster from a disk.
    return kind(source, np.sort(order[held:])), _Subset(evaluated, np.sort(order[:held]))


@dataclass(frozen=True, eq=False)
class _Subset:
    """Some examples of a source; what else the source knows, such as its classes, it knows too."""

    source: Any
    chosen: np.ndarray = field(repr=False)

    @property
    def num_examples(self) -> int:
        return len(self.chosen)

    def rows(self, indices: np.ndarray) -> dict[str, Any]:
        rows: dict[str, Any] = self.source.rows(self.chosen[indices])
        return rows

    def rows_of(self, indices: np.ndarray) -> np.ndarray:
        return self.chosen[indices]

    def __getattr__(self, name: str) -> Any:
        if name in ("source", "chosen", "random_rows", "hold_out", "evaluated"):  # the first two may not be set yet
            raise AttributeError(name)
        value = getattr(self.source, name)
        return (lambda size: type(self)(value(size), self.chosen)) if name == "at_size" else value


@dataclass(frozen=True, eq=False)
class _RandomSubset(_Subset):
    """The same of a source whose training examples are random."""

    def random_rows(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
        rows: dict[str, Any] = self.source.random_rows(self.chosen[indices], draws)
        return rows
