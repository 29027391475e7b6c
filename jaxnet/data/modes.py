"""Pictures of any mode as 8 bits a channel."""

import numpy as np
from PIL import Image

PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's name for this many channels of 8 bits


def to_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Convert to a mode of 8 bits a channel; 16 bits become 8, and transparency is dropped.

    >>> to_mode(Image.new("I;16", (1, 1), 0x1234), "L").getpixel((0, 0)) == 0x12
    True
    """
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        # Grey of 16 bits, which Pillow itself would clip at 255.
        picture = Image.fromarray((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8))
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # its palette may be transparent
    return picture if picture.mode == mode else picture.convert(mode)
