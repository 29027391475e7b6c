"""One 64-bit random number for each position in the stream of training examples.

A draw is a function of (seed, position) and of nothing else, as the order of examples is: the same images come
out on any number of processes, and after a resume.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: multiples of it are spread evenly
_MASK = 2**64 - 1


def draws(seed: int, start: int, stop: int) -> np.ndarray:
    """Return the draws of the positions start .. stop - 1: uint64 [stop - start]; `seed` is below 2**64.

    >>> draws(seed=0, start=1, stop=3).tolist() == draws(seed=0, start=0, stop=3).tolist()[1:]
    True
    """
    position = np.arange(start, stop, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return _mixed(np.uint64(mixed(seed)) + position * np.uint64(_GOLDEN))


def mixed(number: int) -> int:
    """Return `number` modulo 2**64 with its bits stirred: a bijection whose results look independent."""
    return int(_mixed(np.array([(number + _GOLDEN) & _MASK], np.uint64))[0])


def _mixed(number: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
