"""The order of training examples: a function of (seed, position) and of nothing else.

The stream of training examples is the concatenation of epochs, each a permutation of its own.
Nothing else decides which example stands where: neither the number of processes, nor the batch
size, nor what was read before. So the whole state of the data is a position in the stream.
"""

from __future__ import annotations

import functools

import numpy as np


# Two, because a batch may straddle two epochs.
@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Return the order of one epoch: int32 [num_examples], read-only.

    `seed` and `epoch` are below 2**64. NumPy promises that the output of `RandomState` (Mersenne
    Twister) never changes between its versions; it makes no such promise for `Generator`.

    >>> permutation(seed=0, epoch=0, num_examples=8).tolist()
    [7, 2, 4, 0, 5, 3, 1, 6]
    """
    key = np.array([seed, epoch], "<u8").view("<u4")
    order = np.random.RandomState(key).permutation(num_examples).astype(np.int32)
    order.setflags(write=False)
    return order


def example_ids(seed: int, num_examples: int, start: int, stop: int) -> np.ndarray:
    """Return which examples stand at the positions start .. stop - 1 of the stream: int32 [stop - start].

    The example at position p is `permutation(seed, p // n, n)[p % n]`.
    """
    pieces = []
    while start < stop:
        epoch, first = divmod(start, num_examples)
        piece = permutation(seed, epoch, num_examples)[first : first + stop - start]
        pieces.append(piece)
        start += len(piece)
    return np.concatenate(pieces)
