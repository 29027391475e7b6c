"""IDX files are read exactly, and anything else is refused by name."""

import gzip

import numpy as np
import pytest

from jaxnet.data.fashion_mnist import read_idx
from jaxnet.errors import InputError

HEADER = bytes([0, 0, 8, 1, 0, 0, 0, 3])  # three bytes follow


@pytest.mark.parametrize("shape", [(5,), (0,), (2, 3, 4), (300, 1, 2)])
def test_what_was_written_is_read(tmp_path, write_idx, shape):
    array = np.random.RandomState(0).randint(0, 256, shape)
    write_idx(tmp_path / "file.gz", array)
    read = read_idx(tmp_path / "file.gz", ndim=len(shape))
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it starts with nothing, not 00000801"),
        (HEADER[:7], "it starts with 00000801"),
        (bytes([0, 0, 8, 3]) + bytes(12), "it starts with 00000803, not 00000801"),
        (bytes([0, 0, 13, 1]) + bytes(7), "it starts with 00000d01"),
        (b"\x89PNG data", "it starts with 89504e47"),
        (HEADER + b"ab", r"is damaged: its header says \(3,\), which is 3 bytes, but 2 follow"),
        (HEADER + b"abcd", "but 4 follow"),
        (bytes([0, 0, 8, 1, 255, 255, 255, 255]), "which is 4294967295 bytes, but 0 follow"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, content, message):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=message) as error:
        read_idx(path, ndim=1)
    assert str(path) in str(error.value)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    good = gzip.compress(HEADER + b"abc")
    flipped = bytearray(good)
    flipped[-6] ^= 1  # in the checksum
    garbled = bytearray(good)
    garbled[10] ^= 255  # in the compressed bytes
    contents = {"short": good[:-9], "flipped": flipped, "garbled": garbled, "plain": HEADER + b"abc"}
    for name, content in contents.items():
        path = tmp_path / f"{name}.gz"
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{path} cannot be read: "):
            read_idx(path, ndim=1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.gz cannot be read: No such file or directory"):
        read_idx(tmp_path / "none.gz", ndim=1)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_idx(tmp_path, ndim=1)
