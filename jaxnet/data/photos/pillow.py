"""Decoding by Pillow, which takes JPEG and PNG images of any mode, and says what is wrong with one."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, UnidentifiedImageError

from jaxnet.data.modes import to_mode
from jaxnet.data.photos.crops import Box, Choose
from jaxnet.errors import one_line

_FORMATS = ("JPEG", "PNG")
_SHRINKS = (8, 4, 2)  # libjpeg has fast code for these; 8/5 is slower than decoding everything


# What Pillow makes of broken bytes, as fuzzing found it.
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError, AttributeError),
    *(struct.error, Image.DecompressionBombError),
)


class Damaged(Exception):
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
        raise Damaged("it is empty")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            yield picture
    except UnidentifiedImageError as error:
        raise Damaged("it is neither a JPEG nor a PNG image") from error
    except _BROKEN as error:
        raise Damaged(one_line(error) or type(error).__name__) from error


def quiet_pillow() -> None:
    """Ignore what Pillow has to say about the metadata of photos: it says nothing about their pixels."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def shrink_by(box: Box, size: int) -> int:
    """Return by how much a part of an image may be made smaller while it is decoded, so that `size` is left."""
    return next((by for by in _SHRINKS if min(box.height, box.width) >= by * size), 1)
