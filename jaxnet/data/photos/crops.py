"""Choose the part of a photo to crop: boxes in pixels, without touching the pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

_TRIES = 10


class Box(NamedTuple):
    """A rectangle in an image, in whole pixels."""

    top: int
    left: int
    height: int
    width: int


ChooseBox = Callable[[int, int], Box]  # from the (height, width) of an image to a box in it


def random_box(random: Random, height: int, width: int, area: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """Draw the box of a random-resized crop (Szegedy et al., 2014), as torchvision's RandomResizedCrop does.

    The area is uniform in `area`, as a fraction of the image's; the ratio of width to height is log-uniform in
    `ratio`. A box that does not fit is drawn again; after ten tries it is the largest centred box whose ratio is in
    the range.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        pixels = height * width * (area[0] + (area[1] - area[0]) * random.random())
        shape = math.exp(low + (high - low) * random.random())
        box_height, box_width = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < box_height <= height and 0 < box_width <= width:
            top = int(random.random() * (height - box_height + 1))
            left = int(random.random() * (width - box_width + 1))
            return Box(top, left, box_height, box_width)
    return _largest(height, width, ratio)


def _largest(height: int, width: int, ratio: tuple[float, float]) -> Box:
    box_height = min(height, max(1, round(width / ratio[0])))
    box_width = min(width, max(1, round(height * ratio[1])))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def short_side(height: int, width: int, to: int) -> tuple[int, int]:
    """Return (height, width) with the shorter side `to` and the other in proportion, rounded down.

    >>> short_side(400, 500, to=256)
    (256, 320)
    """
    if height <= width:
        return to, to * width // height
    return to * height // width, to


def centre_box(height: int, width: int, size: int) -> Box:
    """Return the square of side `size` in the centre, rounded as torchvision's CenterCrop rounds."""
    return Box(round((height - size) / 2), round((width - size) / 2), size, size)
