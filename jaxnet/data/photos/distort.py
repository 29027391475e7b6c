"""Random changes to the colours and shape of a training image, on the host, by Pillow. Off by default.

The operations, their ranges and the order of draws are those that torchvision documents for RandAugment and
ColorJitter; only the random numbers differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from jaxnet.errors import InputError

Picture = Image.Image
_STRONGEST = 30  # magnitudes are 0 .. 30
_MOST_OPERATIONS = 100  # each takes milliseconds a photo
_TRANSLATE = 150 / 331  # fraction of the width at the largest magnitude (Cubuk et al., 2019)


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast, saturation and hue, in random order.

    Attributes:
        brightness: the factor is drawn from 1 - brightness .. 1 + brightness; 0: no change.
        contrast: the same for contrast.
        saturation: the same for saturation.
        hue: the shift is drawn from -hue .. hue, as a fraction of the circle; at most 0.5.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation) < 0 or not 0 <= self.hue <= 0.5:
            raise InputError(f"colour jitter must be at least 0, and its hue at most 0.5, got {self}")

    def __bool__(self) -> bool:
        return any((self.brightness, self.contrast, self.saturation, self.hue))

    def __call__(self, random: Random, picture: Picture) -> Picture:
        """Return a changed copy of an RGB image."""
        changes = [
            _enhancer(ImageEnhance.Brightness, _factor(random, self.brightness)),
            _enhancer(ImageEnhance.Contrast, _factor(random, self.contrast)),
            _enhancer(ImageEnhance.Color, _factor(random, self.saturation)),
            _hue_shifter(round(255 * self.hue * _signed(random))),
        ]
        for change in sorted(changes, key=lambda _: random.random()):
            picture = change(picture)
        return picture


@dataclass(frozen=True)
class RandAugment:
    """Apply `operations` of 14 operations, drawn with replacement (Cubuk et al., 2019).

    They are identity, shear in x and y (up to 0.3), translation in x and y (up to 150/331 of the side), rotation
    (up to 30 degrees), brightness, colour, contrast and sharpness (factors 1 -+ 0.9), posterize (8 to 4 bits),
    solarize (threshold 255 to 0), autocontrast, equalize. Pixels from outside the image are black.

    Attributes:
        operations: how many are applied to an image; 0: none.
        magnitude: their strength, from 0 to 30.
    """

    operations: int = 0
    magnitude: int = 9

    def __post_init__(self) -> None:
        if not 0 <= self.operations <= _MOST_OPERATIONS or not 0 <= self.magnitude <= _STRONGEST:
            raise InputError(
                f"RandAugment has operations 0 .. {_MOST_OPERATIONS} and magnitude 0 .. {_STRONGEST}, got {self}"
            )

    def __bool__(self) -> bool:
        return self.operations > 0

    def __call__(self, random: Random, picture: Picture) -> Picture:
        """Return a changed copy of an RGB image."""
        for _ in range(self.operations):
            operation = OPERATIONS[int(random.random() * len(OPERATIONS))]
            sign = 1 if random.random() < 0.5 else -1
            picture = operation(picture, self.magnitude / _STRONGEST, sign)
        return picture


def _affine(picture: Picture, a: float, b: float, c: float, d: float, e: float, f: float) -> Picture:
    return picture.transform(picture.size, Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.NEAREST)


def _enhance(enhance: Callable[[Picture], ImageEnhance._Enhance]) -> Callable[[Picture, float, int], Picture]:
    return lambda picture, strength, sign: enhance(picture).enhance(1 + 0.9 * strength * sign)


# Each takes an image, a strength from 0 to 1, and a sign.
OPERATIONS: tuple[Callable[[Picture, float, int], Picture], ...] = (
    lambda p, strength, sign: p,
    lambda p, strength, sign: _affine(p, 1, 0.3 * strength * sign, 0, 0, 1, 0),
    lambda p, strength, sign: _affine(p, 1, 0, 0, 0.3 * strength * sign, 1, 0),
    lambda p, strength, sign: _affine(p, 1, 0, int(_TRANSLATE * p.width * strength) * sign, 0, 1, 0),
    lambda p, strength, sign: _affine(p, 1, 0, 0, 0, 1, int(_TRANSLATE * p.height * strength) * sign),
    lambda p, strength, sign: p.rotate(30 * strength * sign),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Sharpness),
    lambda p, strength, sign: ImageOps.posterize(p, 8 - round(4 * strength)),
    lambda p, strength, sign: ImageOps.solarize(p, round(255 * (1 - strength))),
    lambda p, strength, sign: ImageOps.autocontrast(p),
    lambda p, strength, sign: ImageOps.equalize(p),
)


def _enhancer(enhance: Callable[[Picture], ImageEnhance._Enhance], factor: float) -> Callable[[Picture], Picture]:
    return lambda picture: picture if factor == 1 else enhance(picture).enhance(factor)


def _hue_shifter(by: int) -> Callable[[Picture], Picture]:
    def shift(picture: Picture) -> Picture:
        hue, saturation, value = picture.convert("HSV").split()
        turned = Image.fromarray(np.asarray(hue) + np.uint8(by % 256))  # uint8 wraps round the hue circle
        return Image.merge("HSV", (turned, saturation, value)).convert("RGB")

    return shift if by else lambda picture: picture


def _factor(random: Random, by: float) -> float:
    """Draw a factor uniform in `[max(0, 1 - by), 1 + by]`, as `tasks.augmentation` and torchvision do."""
    if by <= 1:
        return 1 + by * _signed(random)
    return (1 + by) * random.random()


def _signed(random: Random) -> float:
    return 2 * random.random() - 1
