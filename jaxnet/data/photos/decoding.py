"""Decode a box of a JPEG or PNG file to pixels, with the fastest decoder that is installed."""

from __future__ import annotations

import functools
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from jaxnet.data.photos.crops import Box, ChooseBox
from jaxnet.data.png import require_all_rows
from jaxnet.data.source import to_mode
from jaxnet.errors import one_line

# ---- Pillow ---------------------------------------------------------------------------------------------

_FORMATS = ("JPEG", "PNG")
_SHRINKS = (8, 4, 2)  # libjpeg has fast code for these; a factor of 8/5 is slower than decoding everything

# What Pillow raises on broken bytes, as fuzzing found it.
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError, AttributeError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)


class DamagedImage(Exception):
    """An image cannot be decoded; the message says why, in one line."""


def pillow_decode(data: bytes, choose: ChooseBox, size: int) -> np.ndarray:
    """Decode with Pillow alone: JPEG and PNG images of any mode. See `Decoder.decode`."""
    with open_image(data) as picture:
        width, height = picture.size
        box = choose(height, width)
        shrink = shrink_by(box, size)
        drafted = picture.draft(picture.mode, (width // shrink, height // shrink))  # None if it is not a JPEG
        by = drafted[1][2] / width if drafted else 1  # the factor that libjpeg really uses
        edges = (box.left * by, box.top * by, (box.left + box.width) * by, (box.top + box.height) * by)
        return np.asarray(to_mode(picture, "RGB").resize((size, size), Image.Resampling.BILINEAR, box=edges))


@contextmanager
def open_image(data: bytes) -> Iterator[Image.Image]:
    """Open an image with Pillow; any failure inside the `with` raises DamagedImage."""
    if not data:
        raise DamagedImage("it is empty")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            require_all_rows(picture, data)
            yield picture
    except UnidentifiedImageError as error:
        raise DamagedImage("it is neither a JPEG nor a PNG image") from error
    except _BROKEN as error:
        raise DamagedImage(one_line(error) or type(error).__name__) from error


def quiet_pillow() -> None:
    """Ignore Pillow's warnings about the metadata of photos, which do not concern their pixels."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def shrink_by(box: Box, size: int) -> int:
    """Return the largest factor by which libjpeg may shrink an image so that `box` keeps at least `size` pixels."""
    return next((by for by in _SHRINKS if min(box.height, box.width) >= by * size), 1)


# ---- Turned photos --------------------------------------------------------------------------------------

_ORIENTATION = 0x0112  # the EXIF tag
# What is done to a picture for each value of the tag; 1 is upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def turned_upright(pixels: np.ndarray, data: bytes) -> np.ndarray:
    """Return a square cut out of a photo at random, [size, size, 3], turned as the photo's EXIF data say.

    To turn the square is as good as to turn the photo: a random part stays one.
    """
    try:
        with open_image(data) as picture:
            turn = _turn_of(picture)
    except DamagedImage:  # to another decoder it is none: the pixels are there
        return pixels
    return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))


def turned(picture: Image.Image) -> Image.Image:
    """Return a photo turned as its EXIF data say; as it is, where these are broken."""
    turn = _turn_of(picture)
    return picture if turn is None else picture.transpose(turn)


def _turn_of(picture: Image.Image) -> Image.Transpose | None:
    """What turns a photo upright. Of its EXIF data only the one tag is read: others may be broken."""
    try:
        return _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
    except _BROKEN:
        return None


# ---- Decoders -------------------------------------------------------------------------------------------

Decode = Callable[[bytes, ChooseBox, int], np.ndarray]


class Decoder(NamedTuple):
    """A way to decode.

    Attributes:
        name: the packages that do it.
        decode: `decode(data, choose, size)` returns the box that `choose` picks, resized to uint8 [size, size, 3];
            DamagedImage if `data` is no image, or not a complete one.
        mirror: exchanges left and right.
    """

    name: str
    decode: Decode
    mirror: Callable[[np.ndarray], np.ndarray]


PILLOW = Decoder("Pillow", pillow_decode, lambda pixels: pixels[:, ::-1])


@functools.cache
def best_decoder() -> Decoder:
    """Return the fastest decoder that is installed: simplejpeg and OpenCV (jaxnet[fast-jpeg]), else Pillow.

    simplejpeg (libjpeg-turbo) and OpenCV are nearly twice as fast, and work in threads. They resize bilinearly without
    antialiasing, but decode a crop of at least twice the size at 1/2, 1/4 or 1/8. Pillow antialiases.
    """
    try:
        return _fast_decoder()
    except ImportError:
        return PILLOW


def _fast_decoder() -> Decoder:
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)  # our threads have an image each

    def decode(data: bytes, choose: ChooseBox, size: int) -> np.ndarray:
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            box = choose(height, width)
            shrink = shrink_by(box, size)
            pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=-(-height // shrink), min_width=-(-width // shrink))
        except ValueError:  # a PNG, CMYK, anything suspicious: Pillow says whether it is damaged
            return pillow_decode(data, choose, size)
        top, left = box.top // shrink, box.left // shrink
        bottom, right = -(-(box.top + box.height) // shrink), -(-(box.left + box.width) // shrink)
        part = pixels[top:bottom, left:right]
        return np.asarray(cv2.resize(part, (size, size), interpolation=cv2.INTER_LINEAR))

    return Decoder("simplejpeg and OpenCV", decode, lambda pixels: np.asarray(cv2.flip(pixels, 1)))
