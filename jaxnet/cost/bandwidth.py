"""Bytes and seconds as nccl-tests counts them: S bytes, algbw = S / t, busbw = algbw x a factor of the kind.

GB are 10^9 bytes. busbw is what each device sends a second by an algorithm that sends the fewest bytes, and so can be
compared with the speed of a link, whatever the collective and the number of devices.
"""

from collections.abc import Sequence

import numpy as np

from jaxnet.comm.collective import Kind

GB = 1e9


def busbw_factor(kind: Kind, size: int) -> float:
    """Fewest bytes that each of `size` devices sends, as a multiple of S.

    >>> [busbw_factor(kind, 4) for kind in ("all-reduce", "reduce-scatter", "all-gather", "collective-permute")]
    [1.5, 0.75, 0.75, 1.0]
    """
    if kind == "collective-permute":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def algbw(bytes_: int, seconds: float) -> float:
    """GB/s at which the algorithm gets through a message of `bytes_`.

    >>> algbw(2_000_000, 0.001)
    2.0
    """
    return bytes_ / seconds / GB


def percentile(times: Sequence[float] | np.ndarray, percent: float) -> float:
    """The value that `percent` of `times` do not exceed, between two of them by proportion."""
    return float(np.percentile(np.asarray(times), percent))
