"""Whether a PNG file holds all rows of its picture: Pillow leaves those that are missing black, and says nothing."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

_SIGNATURE_BYTES = 8
_AROUND_BYTES = 12  # of a chunk: length, kind and checksum
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour
# Where an interlaced picture's passes begin and how far their pixels lie apart: row, column, row step, column step.
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_AT_ONCE = 1 << 16


def require_all_rows(picture: Image.Image, data: bytes) -> None:
    """Raise OSError if `data`, a file that Pillow has opened as `picture`, is a PNG and ends before its last row.

    Pillow raises for a file that is cut short, but not where its compressed data come to an end too soon. Rows that
    were not there are black, so only a picture whose last row is black is looked at again.
    """
    if picture.format != "PNG":
        return
    width, height = picture.size
    if not picture.info.get("interlace") and np.asarray(picture.crop((0, height - 1, width, height))).any():
        return
    wanted = _bytes_wanted(next(inside for kind, inside in _chunks(data) if kind == b"IHDR"))
    if _bytes_there(data, wanted) < wanted:
        raise OSError("it ends before its last row")


def _bytes_wanted(header: bytes) -> int:
    """Return how many bytes the rows take, each with one before it that says how it is stored."""
    width, height, depth, colour, _, _, interlace = struct.unpack_from(">IIBBBBB", header)
    total = 0
    for top, left, down, right in _PASSES if interlace else ((0, 0, 1, 1),):
        rows, columns = -(-(height - top) // down), -(-(width - left) // right)
        if rows > 0 and columns > 0:
            total += rows * (1 + -(-columns * depth * _CHANNELS[colour] // 8))
    return total


def _bytes_there(data: bytes, most: int) -> int:
    """Return how many bytes the compressed data hold, at least `most` if they hold as many."""
    inflate, there = zlib.decompressobj(), 0
    for packed in (inside for kind, inside in _chunks(data) if kind == b"IDAT"):
        while there < most:
            part = inflate.decompress(packed, _AT_ONCE)
            there, packed = there + len(part), inflate.unconsumed_tail
            if not part and not packed:
                break
    return there


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each chunk."""
    place = _SIGNATURE_BYTES
    while place + _AROUND_BYTES <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        yield kind, data[place + 8 : place + 8 + size]
        place += size + _AROUND_BYTES
