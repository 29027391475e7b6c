"""The part of a photo that a model sees: a random one in training, always the same one in evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from PIL import Image

from jaxnet.data.photos.crops import Box, centre_box, random_box, short_side
from jaxnet.data.photos.decoding import best_decoder, open_image, turned
from jaxnet.data.photos.distort import ColourJitter, RandAugment
from jaxnet.data.source import to_mode
from jaxnet.errors import InputError


@dataclass(frozen=True)
class TrainingView:
    """What training sees of a photo: random-resized crop, flip, RandAugment, colour jitter, in this order.

    Attributes:
        area: smallest and largest area of the crop, as a fraction of the photo.
        ratio: smallest and largest ratio of the crop's width to its height.
        flip: mirror left and right with probability 1/2.
        randaugment: see `RandAugment`; off by default.
        jitter: see `ColourJitter`; off by default.
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    randaugment: RandAugment = field(default_factory=RandAugment)
    jitter: ColourJitter = field(default_factory=ColourJitter)

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise InputError(f"area must be two fractions of 1, the smaller first, got {self.area}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be two numbers above 0, the smaller first, got {self.ratio}")

    def __call__(self, data: bytes, draw: int, size: int) -> np.ndarray:
        """Return the view that the 64 bits of `draw` decide: uint8 [size, size, 3].

        Raises DamagedImage if `data` cannot be decoded.
        """
        # Use random() alone: Python promises that its stream for a given seed never changes.
        random = Random(draw)
        mirror = self.flip and random.random() < 0.5
        seed = int(random.random() * 2**53)

        def choose(height: int, width: int) -> Box:
            # A fresh generator: a decoder that hands over to Pillow calls this twice, and must get the same box.
            return random_box(Random(seed), height, width, self.area, self.ratio)

        decoder = best_decoder()
        pixels = decoder.decode(data, choose, size)
        if mirror:
            pixels = decoder.mirror(pixels)
        return self._distorted(random, pixels) if self.randaugment or self.jitter else pixels

    def _distorted(self, random: Random, pixels: np.ndarray) -> np.ndarray:
        picture = Image.fromarray(pixels)
        if self.randaugment:
            picture = self.randaugment(random, picture)
        return np.asarray(self.jitter(random, picture) if self.jitter else picture)


@dataclass(frozen=True)
class EvaluationView:
    """What evaluation sees of a photo: the centre, as published accuracies are measured.

    Always by Pillow: the shorter side is resized to `resize` by antialiased bilinear interpolation, then the square of
    side `size` in the centre is cut out.
    """

    size: int
    resize: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize:
            raise InputError(f"the size {self.size} of a test image must be 1 .. test_resize={self.resize}")

    def __call__(self, data: bytes, *, turn: bool = False) -> np.ndarray:
        """Return the view: uint8 [size, size, 3]; DamagedImage if it cannot be decoded.

        With `turn` the photo is first turned as its EXIF data say. The centre of a turned photo is not always the
        centre, turned: where a margin is odd, it lies a pixel beside.
        """
        with open_image(data) as picture:
            upright = turned(picture) if turn else picture
            return np.asarray(centre_crop(to_mode(upright, "RGB"), self.size, self.resize))


_MOST_PIXELS = 10**8


def usual_resize(size: int) -> int:
    """The side to which a photo is resized before `size` is cut out, as 256 is for 224."""
    return round(size * 8 / 7)


def centre_crop(picture: Image.Image, size: int, resize: int) -> Image.Image:
    """Resize the shorter side to `resize`, then return the square of side `size` in the centre."""
    height, width = short_side(picture.height, picture.width, resize)
    if height * width > _MOST_PIXELS:  # of which all but a square would be thrown away
        raise ValueError(f"{picture.width}x{picture.height} pixels are too long and thin for a square of side {size}")
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    top, left, _, _ = centre_box(height, width, size)
    return resized.crop((left, top, left + size, top + size))
