"""How images are normalized for weights from elsewhere: told at the import, and kept in its file."""

import math
from typing import Any

from jaxnet.errors import InputError

Numbers = tuple[float, ...]


def checked_pixels(mean: Any, std: Any, channels: int, where: str) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation, or InputError unless each is one number or one a channel, and `std` above 0.

    >>> checked_pixels((0.5,), [0.2, 0.2, 0.3], 3, "a file")
    ((0.5,), (0.2, 0.2, 0.3))
    >>> checked_pixels((0.5,), [0.0], 3, "a file")
    Traceback (most recent call last):
    jaxnet.errors.InputError: a file: std is [0.0]: wanted one number above 0, or one for each of 3 channels
    """
    return _checked(mean, channels, -math.inf, f"{where}: mean"), _checked(std, channels, 0.0, f"{where}: std")


def _checked(given: Any, channels: int, above: float, what: str) -> Numbers:
    values = tuple(given) if isinstance(given, list | tuple) else ()
    if len(values) not in (1, channels) or not all(
        type(value) in (int, float) and above < value < math.inf for value in values
    ):
        bound = "" if math.isinf(above) else f" above {above:g}"
        raise InputError(f"{what} is {given!r:.60}: wanted one number{bound}, or one for each of {channels} channels")
    return values
