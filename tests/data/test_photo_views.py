"""Crops and transforms against plain references: Pillow's own resize and crop, and the documented ranges."""

import io
import math
import struct
import warnings
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jaxnet.data.photos import ColourJitter, EvaluationView, RandAugment, TrainingView, decoding, distort
from jaxnet.data.photos.crops import Box, centre_box, random_box, short_side
from jaxnet.data.photos.decoding import PILLOW, DamagedImage, Decoder, best_decoder, quiet_pillow, shrink_by
from jaxnet.errors import InputError
from support.imagenet import image_file, photo, texture

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
sides = st.integers(1, 700)


def decoders() -> list[Decoder]:
    return [PILLOW] if best_decoder() is PILLOW else [PILLOW, best_decoder()]


def whole(height: int, width: int) -> Box:
    return Box(0, 0, height, width)


@given(seed=st.integers(0, 2**64 - 1), height=sides, width=sides)
def test_a_random_box_lies_in_the_image(seed, height, width):
    box = random_box(Random(seed), height, width, AREA, RATIO)
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width
    assert box == random_box(Random(seed), height, width, AREA, RATIO)


def test_random_boxes_have_the_distribution_that_is_promised():
    random = Random(1)
    boxes = [random_box(random, 4000, 4000, (0.1, 0.5), RATIO) for _ in range(4000)]
    area = np.array([box.height * box.width for box in boxes]) / 4000**2
    shape = np.log([box.width / box.height for box in boxes])
    top = np.array([box.top / (4000 - box.height) for box in boxes])
    for values, low, high in ((area, 0.1, 0.5), (shape, math.log(3 / 4), math.log(4 / 3)), (top, 0, 1)):
        assert low - 0.01 <= values.min() <= values.max() <= high + 0.01
        histogram, _ = np.histogram(values, 8, (low, high))
        assert abs(histogram / 4000 - 1 / 8).max() < 0.02  # uniform


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (10, 1000, Box(0, 493, 10, 13)),  # nothing fits: the widest that the ratio lets
        (1000, 10, Box(493, 0, 13, 10)),
        (1, 1, Box(0, 0, 1, 1)),
    ],
)
def test_a_box_that_never_fits_is_the_largest_in_the_centre(height, width, box):
    assert random_box(Random(0), height, width, (0.9, 1.0), RATIO) == box


@given(height=st.integers(1, 3000), width=st.integers(1, 3000))
def test_the_short_side_is_brought_to_256_and_the_centre_is_inside(height, width):
    new = short_side(height, width, 256)
    assert min(new) == 256
    assert max(new) == int(256 * max(height, width) / min(height, width))
    top, left, side, _ = centre_box(*new, 224)
    assert 0 <= top <= new[0] - side
    assert 0 <= left <= new[1] - side


@pytest.mark.parametrize("size", [(300, 400), (400, 301), (256, 256), (40, 52), (1000, 300)])
def test_evaluation_is_pillows_resize_and_crop(size):
    data = photo(3, height=size[0], width=size[1])
    picture = Image.open(io.BytesIO(data))
    scale = 256 / min(picture.size)
    width, height = (256 if side == min(picture.size) else int(side * scale) for side in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = int(round((width - 224) / 2.0)), int(round((height - 224) / 2.0))  # noqa: RUF046
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    np.testing.assert_array_equal(EvaluationView(224, 256)(data), expected)


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
@pytest.mark.parametrize("box", [Box(0, 0, 90, 120), Box(11, 23, 50, 61), Box(7, 5, 20, 20), Box(89, 119, 1, 1)])
def test_a_crop_is_about_what_pillow_makes_of_it(decoder, box):
    data = photo(5, height=90, width=120)
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    expected = Image.open(io.BytesIO(data)).crop(edges).resize((32, 32), Image.Resampling.BILINEAR)
    got = decoder.decode(data, lambda *_: box, 32)
    assert (got.dtype, got.shape) == (np.uint8, (32, 32, 3))
    assert abs(got.astype(int) - np.asarray(expected)).mean() < 2.5


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
@pytest.mark.parametrize("times", [2, 3, 4, 9])
def test_what_is_too_large_is_decoded_smaller_and_in_its_place(decoder, times):
    x, y = np.linspace(0, 255, 41 * times), np.linspace(0, 255, 33 * times)
    ramps = np.stack([*np.meshgrid(x, y), np.full((len(y), len(x)), 128)], -1)  # filters leave a ramp as it is
    box = Box(times, 2 * times, 30 * times, 32 * times)
    assert shrink_by(box, 15) == {2: 4, 3: 4, 4: 8, 9: 8}[times]
    got = decoder.decode(image_file(ramps.astype(np.uint8)), lambda *_: box, 15)
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    expected = Image.fromarray(ramps.astype(np.uint8)).crop(edges).resize((15, 15), Image.Resampling.BILINEAR)
    assert abs(got.astype(int) - np.asarray(expected)).max() <= 10  # a pixel is a step of 255 / 15 = 17


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
@pytest.mark.parametrize(
    ("mode", "kind"), [("CMYK", "JPEG"), ("L", "JPEG"), ("RGB", "PNG"), ("P", "PNG"), ("L", "PNG")]
)
def test_images_of_every_kind_become_rgb(decoder, mode, kind):
    pixels = texture(2)
    data = image_file(pixels, mode, kind)
    expected = Image.fromarray(pixels).convert(mode).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    got = decoder.decode(data, whole, 16)
    assert abs(got.astype(int) - np.asarray(expected)).mean() < 6


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
def test_sixteen_bits_become_eight(decoder):
    """Pillow itself would cut them at 255: nearly all white."""
    wide = np.repeat(np.linspace(0, 65535, 16).astype(np.uint16)[:, None], 16, 1)
    file = io.BytesIO()
    Image.fromarray(wide).save(file, "PNG")
    data = file.getvalue()
    for got in (decoder.decode(data, whole, 16), EvaluationView(16, 16)(data)):
        np.testing.assert_array_equal(got, np.repeat((wide >> 8).astype(np.uint8)[..., None], 3, 2))


@pytest.mark.parametrize("raised", [IndexError("list index out of range"), struct.error("unpack"), ZeroDivisionError()])
def test_whatever_pillow_makes_of_broken_bytes_is_damaged(raised, monkeypatch):
    data = photo(1)

    def broken(*_):
        raise raised

    monkeypatch.setattr(Image.Image, "resize", broken)
    with pytest.raises(DamagedImage, match=str(raised) or "ZeroDivisionError"):
        EvaluationView(16, 16)(data)


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"GIF89a and so on", "it is neither a JPEG nor a PNG image"),
        (photo(1)[:-300], "image file is truncated"),
        (photo(1)[:200], "(?i)truncated"),
        (image_file(texture(1), kind="PNG")[:-200], "(?i)truncated|broken|not enough image data"),
    ],
)
def test_what_cannot_be_decoded_is_damaged(decoder, data, message):
    with pytest.raises(DamagedImage, match=message):
        decoder.decode(data, whole, 16)
    with pytest.raises(DamagedImage, match=message):
        EvaluationView(16, 16)(data)


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
def test_a_mirror_exchanges_left_and_right(decoder):
    pixels = texture(4)
    np.testing.assert_array_equal(decoder.mirror(pixels), pixels[:, ::-1])


def test_without_the_fast_packages_pillow_decodes(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    decoding.best_decoder.cache_clear()
    assert best_decoder() is PILLOW
    decoding.best_decoder.cache_clear()


def test_a_view_is_a_function_of_its_draw():
    data, view = photo(9, height=90, width=120), TrainingView()
    views = [view(data, draw, 24) for draw in range(12)]
    for draw, image in enumerate(views):
        np.testing.assert_array_equal(view(data, draw, 24), image)
    assert len({image.tobytes() for image in views}) == 12


def test_half_of_the_views_are_mirrored():
    data = photo(9)
    plain, both = (TrainingView(area=(1, 1), ratio=(1.3, 1.3), flip=flip) for flip in (False, True))
    assert np.array_equal(plain(data, 1, 16), plain(data, 2, 16))
    mirrored = [not np.array_equal(both(data, draw, 16), plain(data, 0, 16)) for draw in range(400)]
    assert 150 < sum(mirrored) < 250
    np.testing.assert_array_equal(both(data, mirrored.index(True), 16), plain(data, 0, 16)[:, ::-1])


@pytest.mark.parametrize("operation", distort.OPERATIONS)
def test_an_operation_keeps_the_form_and_without_strength_nearly_the_image(operation):
    picture = Image.fromarray(texture(3))
    for strength, sign in ((0.3, 1), (1.0, -1)):
        changed = operation(picture, strength, sign)
        assert (changed.mode, changed.size) == (picture.mode, picture.size)
    if operation not in distort.OPERATIONS[-2:]:  # autocontrast and equalize have no strength
        weak = np.asarray(operation(picture, 0.0, 1)).astype(int)
        assert abs(weak - texture(3)).max() <= 1 or operation is distort.OPERATIONS[-3]


def test_the_operations_do_what_their_names_say():
    picture = Image.fromarray(texture(3))
    _, _, _, right, down, turn, bright, *_ = distort.OPERATIONS
    moved = np.asarray(right(picture, 1.0, 1))
    by = int(150 / 331 * picture.width)
    np.testing.assert_array_equal(moved[:, : picture.width - by], texture(3)[:, by:])
    assert not moved[:, picture.width - by :].any()
    assert not np.asarray(down(picture, 1.0, -1))[: int(150 / 331 * picture.height)].any()
    np.testing.assert_array_equal(np.asarray(turn(picture, 1.0, 1)), np.asarray(picture.rotate(30)))
    assert np.asarray(bright(picture, 1.0, -1)).mean() == pytest.approx(0.1 * texture(3).mean(), abs=1)


def test_randaugment_and_jitter_change_the_view_and_follow_the_draw():
    data = photo(9)
    for view in (
        TrainingView(randaugment=RandAugment(2, 9)),
        TrainingView(jitter=ColourJitter(0.4, 0.4, 0.4, 0.1)),
    ):
        assert sum(not np.array_equal(view(data, d, 16), TrainingView()(data, d, 16)) for d in range(20)) > 12
        np.testing.assert_array_equal(view(data, 5, 16), view(data, 5, 16))


@given(seed=st.integers(0, 2**32), by=st.floats(0.01, 4))
def test_factors_of_jitter_are_uniform_from_zero_or_one_less(seed, by):
    """Not cut off at 0 after the draw, which would make many images black."""
    least, most = max(0.0, 1 - by), 1 + by
    part = (distort._factor(Random(seed), by) - least) / (most - least)
    assert part == pytest.approx(Random(seed).random(), abs=1e-9)


def test_jitter_without_strength_is_the_identity_and_hue_alone_keeps_the_brightest_channel():
    picture = Image.fromarray(texture(1))
    assert not ColourJitter()
    assert ColourJitter()(Random(0), picture) is picture
    turned = np.asarray(ColourJitter(hue=0.5)(Random(3), picture)).astype(int)
    assert abs(turned.max(-1) - texture(1).max(-1)).max() <= 3
    assert abs(turned - texture(1)).mean() > 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainingView(area=(0, 1)), "area must be two fractions of 1"),
        (lambda: TrainingView(area=(0.5, 0.2)), "area must be two fractions of 1"),
        (lambda: TrainingView(ratio=(2, 1)), "ratio must be two numbers"),
        (lambda: EvaluationView(224, 200), "224 of a test image must be 1 .. test_resize=200"),
        (lambda: RandAugment(2, 31), "magnitude 0 .. 30"),
        (lambda: ColourJitter(hue=0.6), "hue at most 0.5"),
    ],
)
def test_ranges_that_cannot_be_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_pillow_is_quiet_about_metadata():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        quiet_pillow()
        warnings.warn_explicit("Corrupt EXIF data", UserWarning, "TiffImagePlugin.py", 1, "PIL.TiffImagePlugin")
    assert not heard
