"""From the bytes of a JPEG or PNG file to the pixels of a part of it: by the fastest decoder that is installed."""

from __future__ import annotations

import functools
import io
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from jaxnet.data.photos.crops import Box, Choose
from jaxnet.data.source import to_mode
from jaxnet.errors import one_line

# ---- Decoding by Pillow, which takes JPEG and PNG images of any mode, and says what is wrong with one -


_FORMATS = ("JPEG", "PNG")
_SHRINKS = (8, 4, 2)  # libjpeg has fast code for these; 8/5 is slower than decoding everything


# What Pillow makes of broken bytes, as fuzzing found it.
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError, AttributeError),
    *(struct.error, Image.DecompressionBombError),
)


class DamagedImage(Exception):
    """An image cannot be decoded; the message says why, in one line."""


def pillow_decode(data: bytes, choose: Choose, size: int) -> np.ndarray:
    """`Decoder.decode` by Pillow alone, for JPEG and PNG images of any mode."""
    with opened(data) as picture:
        width, height = picture.size
        box = choose(height, width)
        shrink = shrink_by(box, size)
        drafted = picture.draft(picture.mode, (width // shrink, height // shrink))  # None for what is not a JPEG
        by = drafted[1][2] / width if drafted else 1
        edges = (box.left * by, box.top * by, (box.left + box.width) * by, (box.top + box.height) * by)
        return np.asarray(to_mode(picture, "RGB").resize((size, size), Image.Resampling.BILINEAR, box=edges))


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open an image with Pillow; whatever goes wrong inside the `with` is Damaged."""
    if not data:
        raise DamagedImage("it is empty")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            yield picture
    except UnidentifiedImageError as error:
        raise DamagedImage("it is neither a JPEG nor a PNG image") from error
    except _BROKEN as error:
        raise DamagedImage(one_line(error) or type(error).__name__) from error


def quiet_pillow() -> None:
    """Ignore what Pillow has to say about the metadata of photos: it says nothing about their pixels."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def shrink_by(box: Box, size: int) -> int:
    """Return by how much a part of an image may be made smaller while it is decoded, so that `size` is left."""
    return next((by for by in _SHRINKS if min(box.height, box.width) >= by * size), 1)


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
