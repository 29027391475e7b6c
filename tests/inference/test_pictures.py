"""Picture files of every kind become the input of a network, or one line that says what is wrong."""

import io
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxnet.data import Inputs, inputs_of
from jaxnet.data.photos.decoding import DamagedImage
from jaxnet.data.photos.source import EvaluationPhotos, PhotoRecords
from jaxnet.data.photos.views import EvaluationView
from jaxnet.inference.predictor import Unreadable, read_picture
from support.pngs import packed

GREY, COLOUR = Inputs((8, 8, 1), 10), Inputs((8, 8, 3), 10)
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def photo(height=30, width=40):
    row, column = np.mgrid[:height, :width]
    return np.stack([row * 255 // height, column * 255 // width, (row + column) % 256], -1).astype(np.uint8)


def saved(path, picture, **options):
    picture.save(path, **options)
    return path


def test_an_image_of_the_right_size_arrives_unchanged(tmp_path):
    pixels = photo(8, 8)
    path = saved(tmp_path / "a.png", Image.fromarray(pixels))
    np.testing.assert_array_equal(read_picture(path, COLOUR), pixels)
    grey = saved(tmp_path / "g.png", Image.fromarray(pixels[:, :, 0]))
    np.testing.assert_array_equal(read_picture(grey, GREY)[:, :, 0], pixels[:, :, 0])


def test_another_size_is_resized_as_a_whole(tmp_path):
    picture = Image.fromarray(photo())
    path = saved(tmp_path / "a.png", picture)
    wanted = np.asarray(picture.resize((8, 8), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(read_picture(path, COLOUR), wanted)


@pytest.mark.parametrize("size", [(300, 400), (41, 17), (16, 16)])
def test_photos_get_the_transform_that_evaluation_uses(tmp_path, size):
    path = saved(tmp_path / "a.jpg", Image.fromarray(photo(*size)), quality=95)
    given = read_picture(path, Inputs((14, 14, 3), 10, resize=16))
    np.testing.assert_array_equal(given, EvaluationView(14, 16)(path.read_bytes()))


def test_photos_say_how_they_are_transformed():
    source = EvaluationPhotos(PhotoRecords([], 2, class_names=("cat", "dog")), EvaluationView(14, 16))
    made = inputs_of(source)
    assert made == Inputs((14, 14, 3), 2, ("cat", "dog"), resize=16)
    assert Inputs.from_json(made.as_json()) == made


def test_16_bits_become_8_and_are_not_clipped(tmp_path):
    deep = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    path = saved(tmp_path / "deep.png", Image.fromarray(deep))
    np.testing.assert_array_equal(read_picture(path, GREY)[:, :, 0], deep >> 8)
    np.testing.assert_array_equal(read_picture(path, COLOUR)[:, :, 2], deep >> 8)


def test_a_palette_with_and_without_transparency(tmp_path):
    flat = Image.new("RGB", (8, 8), (10, 200, 30))
    plain = saved(tmp_path / "p.png", flat.quantize(4))
    clear = saved(tmp_path / "t.png", flat.quantize(4), transparency=bytes([0, 128, 255]))
    for path in (plain, clear):
        np.testing.assert_allclose(read_picture(path, COLOUR)[0, 0], [10, 200, 30], atol=8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "CMYK", "RGB"])
def test_every_mode_becomes_grey_and_colour(tmp_path, mode):
    picture = Image.new("RGB", (20, 10), "white").convert(mode)
    path = saved(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"), picture)
    for inputs in (GREY, COLOUR):
        given = read_picture(path, inputs)
        assert (given.shape, given.dtype) == (inputs.image_shape, np.uint8)
        assert given.min() >= 250


def test_it_is_turned_upright(tmp_path):
    pixels = photo(8, 8)
    lying = Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    path = saved(tmp_path / "phone.png", lying, exif=exif)
    np.testing.assert_array_equal(read_picture(path, COLOUR), pixels)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def huge_png(side):
    """A few bytes that claim to be side x side pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg(size=64):
    stream = io.BytesIO()
    Image.fromarray(photo(size, size)).save(stream, "JPEG")
    return stream.getvalue()


def png(size=64):
    stream = io.BytesIO()
    Image.fromarray(photo(size, size)).save(stream, "PNG")
    return stream.getvalue()


BROKEN = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is text", "neither a JPEG nor a PNG"),
    "a gif": (b"GIF89a" + bytes(40), "neither a JPEG nor a PNG"),
    "cut jpeg": (jpeg()[:700], "truncated"),
    "cut png": (png()[:90], "truncated"),
    "only a header": (jpeg()[:20], "neither|truncated|JPEG"),
    "a bomb": (huge_png(60_000), "60000|3600000000"),
}


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_one_message(tmp_path, content, words):
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=words):
        read_picture(path, COLOUR)


@pytest.mark.parametrize("whole", [jpeg(), png()], ids=["jpeg", "png"])
def test_no_damage_is_more_than_one_message(tmp_path, whole):
    draw, path = np.random.default_rng(0), tmp_path / "a"
    for _ in range(200):
        content = bytearray(whole)
        for place in draw.integers(0, len(whole), 3):
            content[place] = draw.integers(256)
        path.write_bytes(content[: draw.integers(len(whole) // 2, len(whole) + 1)])
        with suppress(Unreadable):
            assert read_picture(path, COLOUR).shape == (8, 8, 3)


PIXELS = np.arange(1, 65, dtype=np.uint8).reshape(8, 8)
GREY_PHOTOS = EvaluationView(8, 8)


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("last", [0, 7], ids=["black", "grey"])
def test_a_png_whose_data_end_early_is_damaged(tmp_path, interlaced, last):
    """Its compressed data are whole, so that Pillow leaves the last rows black and says nothing."""
    pixels = PIXELS.copy()
    pixels[-1] = last
    whole = packed(pixels, interlaced=interlaced)
    (tmp_path / "a.png").write_bytes(whole)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", GREY)[..., 0], pixels)
    GREY_PHOTOS(whole)
    for rows in (1, 5, -1):
        cut = packed(pixels, rows=rows, interlaced=interlaced)
        (tmp_path / "a.png").write_bytes(cut)
        with pytest.raises(Unreadable, match="it ends before its last row"):
            read_picture(tmp_path / "a.png", GREY)
        with pytest.raises(DamagedImage, match="it ends before its last row"):
            GREY_PHOTOS(cut)


@pytest.mark.parametrize("kind", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_black_png_of_any_mode_is_whole(tmp_path, kind):
    for size in ((1, 1), (9, 5), (300, 2)):
        saved(tmp_path / "a.png", Image.new(kind, size))
        assert not read_picture(tmp_path / "a.png", GREY).any()


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_a_jpeg_that_is_cut_short_is_damaged(tmp_path, options):
    path = saved(tmp_path / "a.jpg", Image.fromarray(photo(100, 100)), quality=95, **options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(Unreadable, match="truncated"):
        read_picture(path, COLOUR)


def test_what_is_not_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "file").touch()
    reasons = {
        "pipe.png": "it is not a file",
        "loop.png": "Too many levels of symbolic links",
        "none.png": "No such file or directory",
        "file/a.png": "Not a directory",
        ".": "it is not a file",
        "a\0b.png": "null",
        "a" * 300: "File name too long",
    }
    for name, reason in reasons.items():
        with pytest.raises(Unreadable, match=reason):
            read_picture(tmp_path / name, COLOUR)


@pytest.mark.parametrize(("name", "call"), [("a.png", "read_bytes"), (".", "iterdir")])
def test_what_may_not_be_read(tmp_path, monkeypatch, name, call):
    saved(tmp_path / "a.png", Image.fromarray(photo()))

    def refuse(_):  # root, who runs many tests, may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(Unreadable, match="Permission denied"):
        read_picture(tmp_path / name, COLOUR)
