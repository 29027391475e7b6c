"""A JPEG or PNG file as the uint8 array that a network takes, by the evaluation transform of its data set.

But for one thing: it is turned upright as the camera says. Data sets are read as they lie, as published accuracies are
measured, and hold few such photos; who asks about a photo of their own has one more often than not.
"""

import stat
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from jaxnet.data import Inputs
from jaxnet.data.modes import PILLOW_MODES, to_mode
from jaxnet.data.photos.pillow import Damaged, opened
from jaxnet.data.photos.views import centred

_MOST_BYTES = 2**30


class Unreadable(Exception):
    """A file cannot be had as an image; the message says why, without its path."""


def read_picture(path: Path, inputs: Inputs) -> np.ndarray:
    """Decode, turn upright as the camera says, convert to the channels that the network takes, and resize.

    Any grey, colour, palette or CMYK picture is taken; 16 bits become 8, and transparency is dropped.

    Raises:
        Unreadable: it is no whole JPEG or PNG file, or has more pixels than Pillow decodes (179 million).
    """
    try:
        with opened(_bytes(path)) as picture:
            return fitted(picture, inputs)
    except Damaged as error:
        raise Unreadable(str(error)) from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    except (Image.DecompressionBombWarning, MemoryError) as error:
        raise Unreadable(f"it is too large: {error}") from error
    except Exception as error:  # whatever Pillow makes of broken bytes, or the system of such a name
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _bytes(path: Path) -> bytes:
    about = path.stat()
    if stat.S_ISDIR(about.st_mode):
        next(path.iterdir(), None)  # a directory comes here when it cannot be listed: this says why
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("it is not a file")  # a pipe would be waited for
    if about.st_size > _MOST_BYTES:
        raise Unreadable(f"it has {about.st_size} bytes; images of up to {_MOST_BYTES} are read")
    return path.read_bytes()


def fitted(picture: Image.Image, inputs: Inputs) -> np.ndarray:
    """A picture of any size and mode as uint8 [height, width, channels].

    >>> fitted(Image.new("L", (5, 4), 7), Inputs((2, 2, 1), 10))[0, 0]
    array([7], dtype=uint8)
    """
    height, width, channels = inputs.image_shape
    upright = to_mode(ImageOps.exif_transpose(picture), PILLOW_MODES[channels])
    if inputs.resize is None:
        resized = upright.resize((width, height), Image.Resampling.BILINEAR)
    else:
        resized = centred(upright, height, inputs.resize)
    return np.asarray(resized).reshape(inputs.image_shape)
