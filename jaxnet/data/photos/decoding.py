"""From the bytes of a JPEG or PNG file to the pixels of a part of it: by the fastest decoder that is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxnet.data.photos.crops import Choose
from jaxnet.data.photos.pillow import pillow_decode

Decode = Callable[[bytes, Choose, int], np.ndarray]


class Decoder(NamedTuple):
    """How to decode.

    Attributes:
        name: of the packages that do it.
        decode: the part of an image that the function names, resized to uint8 [size, size, 3]; Damaged if it is
            not an image, or not a whole one.
        mirror: exchanges left and right.
    """

    name: str
    decode: Decode
    mirror: Callable[[np.ndarray], np.ndarray]


@functools.cache
def best_decoder() -> Decoder:
    """Return the fastest decoder that is installed.

    With simplejpeg and OpenCV, which jaxnet[fast-jpeg] installs: bilinear and not antialiased, but what is at least
    twice too large is decoded at 1/2, 1/4 or 1/8. Else Pillow: bilinear and antialiased.
    """
    try:
        from jaxnet.data.photos.fast import fast_decode, fast_mirror
    except ImportError:
        return PILLOW
    return Decoder("simplejpeg and OpenCV", fast_decode, fast_mirror)


PILLOW = Decoder("Pillow", pillow_decode, lambda pixels: pixels[:, ::-1])
