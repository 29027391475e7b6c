"""How images are normalized for weights from elsewhere: told at the import, and kept in its file."""

import math
from collections.abc import Callable
from typing import Any

from jaxnet.errors import InputError

Numbers = tuple[float, ...]

HALVES = ("googlenet_bn", "inception_v3")
"""Networks whose weights torchvision has from TensorFlow: they take pixels with a mean and a deviation of 0.5."""


def checked_pixels(mean: Any, std: Any, channels: int, where: str) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation, or InputError unless each is one number or one a channel, of pixels of 0 to 1.

    >>> checked_pixels((0.5,), [0.2, 0.2, 0.3], 3, "a file")
    ((0.5,), (0.2, 0.2, 0.3))
    >>> checked_pixels((0.5,), [0.0], 3, "a file")
    Traceback (most recent call last):
    jaxnet.errors.InputError: a file: std is [0.0]: wanted one number above 0, or one for each of 3 channels
    """
    means = _checked(mean, channels, lambda value: 0 <= value <= 1, f"{where}: mean", "of 0 to 1")
    return means, _checked(std, channels, lambda value: 0 < value < math.inf, f"{where}: std", "above 0")


def _checked(given: Any, channels: int, is_right: Callable[[float], bool], what: str, bound: str) -> Numbers:
    values = tuple(given) if isinstance(given, list | tuple) else ()
    if len(values) not in (1, channels) or not all(type(value) in (int, float) and is_right(value) for value in values):
        raise InputError(f"{what} is {given!r:.60}: wanted one number {bound}, or one for each of {channels} channels")
    return values
