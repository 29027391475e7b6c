"""One image of an archive: whether it is whole, and in the one form that every reader expects.

ImageNet calls all its files JPEG, but 22 are CMYK and one is a PNG. Those become RGB JPEGs of the best quality,
as TFDS makes of them; whatever is a grey or a colour JPEG stays as it is, byte for byte. Nothing here depends on
which decoders are installed, so the result is the same everywhere with one version of Pillow.
"""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image

from jaxnet.data.modes import to_mode
from jaxnet.data.photos.pillow import opened

_SMALLEST = 8  # libjpeg decodes at 1/8 in half the time; all of the data is read nevertheless


class Checked(NamedTuple):
    """An image that can be decoded: its file, and what it was converted from, if it was."""

    data: bytes
    was: str | None = None


def check_image(data: bytes) -> Checked:
    """Decode an image, and convert it if need be; Damaged if that fails."""
    with opened(data) as picture:
        if picture.format == "JPEG" and picture.mode in ("L", "RGB"):
            picture.draft(picture.mode, (max(1, picture.width // _SMALLEST), max(1, picture.height // _SMALLEST)))
            picture.load()
            return Checked(data)
        was = f"{picture.mode} {picture.format}"
        return Checked(_jpeg(to_mode(picture, "RGB")), was)


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=100, subsampling=0)
    return file.getvalue()
